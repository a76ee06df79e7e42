"""The tables and the picture of `bench/attention.py`."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAUSAL, FULL = "sdpa, causal", "sdpa, full"
_FASTER = 0.9  # of torch's time with the most tokens


def _ratio(line: dict[str, Any]) -> float:
    """Return the time over that of torch's attention in the same turns."""
    return statistics.median(line["seconds"]) / statistics.median(line["base_seconds"])


def _crossover(lines: dict[int, dict[str, Any]]) -> float | None:
    """Return the tokens from which on the kind is faster, between two that were measured.

    None if it is hardly faster in the end: `causal` is torch's own attention.
    """
    ratios = [(n, _ratio(line)) for n, line in sorted(lines.items())]
    if ratios[-1][1] > _FASTER:
        return None
    slower = [i for i, (_, ratio) in enumerate(ratios) if ratio >= 1]
    if not slower:
        return float(ratios[0][0])
    (n, ratio), (more, less) = ratios[slower[-1] : slower[-1] + 2]
    return n * (more / n) ** (math.log(ratio) / math.log(ratio / less))


def table(figures: dict[str, Any], tokens: list[int], what: str) -> str:
    """Return a table in Markdown: milliseconds with the ratio to torch's, or MiB."""
    unit = "ms (of torch's)" if what == "seconds" else "MiB"
    head = [unit, *(f"{n:,}" for n in tokens), *(["faster from"] if what == "seconds" else [])]
    return "\n".join(
        f"| {' | '.join(row)} |"
        for row in [head, ["---"] * len(head), *_rows(figures, tokens, what)]
    )


def _rows(figures: dict[str, Any], tokens: list[int], what: str) -> Iterator[list[str]]:
    for name, lines in figures.items():
        row = [name]
        for n in tokens:
            line = lines.get(n)
            if line is None:
                row.append("")
            elif what == "memory":
                row.append(f"{line['memory'] / 2**20:,.0f}")
            else:
                of_torch = "" if name in (CAUSAL, FULL) else f" ({_ratio(line):.2f})"
                row.append(f"{1000 * statistics.median(line['seconds']):,.1f}{of_torch}")
        if what == "seconds":
            point = None if name in (CAUSAL, FULL) else _crossover(lines)
            least = f"{min(lines):,} or fewer"
            row.append("" if point is None else least if point <= min(lines) else f"{point:,.0f}")
        yield row


def draw(figures: dict[str, Any], path: Path, about: str) -> None:
    """Draw time and memory against the tokens; a ring is where a kind becomes the faster one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 7), layout="constrained")
    styles = ("-", "--", ":")
    for number, (name, lines) in enumerate(figures.items()):
        tokens = sorted(lines)
        is_torch = name in (CAUSAL, FULL)
        style = {"color": "black", "linewidth": 2.5} if is_torch else {"color": f"C{number % 10}"}
        style["linestyle"] = ("-", "--")[name == FULL] if is_torch else styles[number // 10 % 3]
        seconds = [statistics.median(lines[n]["seconds"]) for n in tokens]
        left.plot(tokens, seconds, label=name, **style)
        right.plot(tokens, [lines[n]["memory"] / 2**20 for n in tokens], label=name, **style)
        point = None if is_torch else _crossover(lines)
        if point is not None and point > tokens[0]:
            after = next(i for i, n in enumerate(tokens) if n >= point)
            share = math.log(point / tokens[after - 1]) / math.log(
                tokens[after] / tokens[after - 1]
            )
            at = seconds[after - 1] ** (1 - share) * seconds[after] ** share
            left.plot(point, at, "o", markersize=9, markerfacecolor="none", color=style["color"])
    for axes, what in ((left, "seconds, forward and backward"), (right, "peak memory, MiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        lengths = sorted({n for lines in figures.values() for n in lines})
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.set_xlabel("tokens of a sequence")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(about, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
