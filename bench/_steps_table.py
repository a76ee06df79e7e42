"""The table of `bench/steps.py` and the lines above and below it."""

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import transformers
from _steps_plan import Plan, positions, tokens
from _turns import machine

OURS, DEFAULTS, BEST = "nlpkit", "Trainer", "best flags"
SUBJECTS = (OURS, DEFAULTS, BEST)
COLUMNS = (
    *("workload", "type", "whose", "real tokens/s, median (best)", "x Trainer", "x best flags"),
    *("of GEMM peak", "peak memory", "x Trainer"),
)


@dataclass
class Measured:
    """A subject in one type: the rounds that count."""

    name: str
    seconds: list[float]
    tokens: list[int]  # of each round
    flops: list[float]  # of each round
    updates: list[int]  # tokens of each update, that of the first round too
    memory: int  # bytes, above that of the libraries

    @property
    def rates(self) -> list[float]:
        """Real tokens a second in each round."""
        return [n / s for n, s in zip(self.tokens, self.seconds, strict=True)]

    def share(self, peak: float) -> float:
        """Return the median share of the rate of a large matrix product."""
        rates = [w / s for w, s in zip(self.flops, self.seconds, strict=True)]
        return statistics.median(rates) / peak

    def faster(self, other: "Measured") -> list[float]:
        """Return how many times as fast as another subject, for each round."""
        return [a / b for a, b in zip(self.rates, other.rates, strict=True)]


@dataclass
class Group:
    """A workload in one type, with the subjects that took turns."""

    plan: Plan
    dtype: str
    measured: dict[str, Measured]
    peak: float  # FLOP/s of a large matrix product, the best of the run in this type

    @property
    def title(self) -> str:
        """The workload in words."""
        work = self.plan.workload
        lengths = "full rows" if work.is_full else "own lengths"
        return f"{work.family} {work.verb}, {lengths}, {work.size}"

    def bases(self) -> dict[str, Measured | None]:
        """Return what is compared with: the defaults, and the faster of both ways of Trainer."""
        theirs = [self.measured[name] for name in (DEFAULTS, BEST) if name in self.measured]
        best = max(theirs, key=lambda each: statistics.median(each.rates), default=None)
        return {DEFAULTS: self.measured.get(DEFAULTS), BEST: best}


def header(arguments: Any, peaks: dict[str, float], left_out: str) -> str:
    """Return when and where it was measured."""
    clock = "wall time" if arguments.clock == "wall" else "processor time"
    reached = ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in peaks.items())
    return (
        f"{machine(arguments.threads)}, transformers {transformers.__version__}, {clock}, "
        f"load {os.getloadavg()[0]:.1f};\nmatrix products reach {reached}{left_out}"
    )


def head() -> str:
    """Return the first two lines of the table."""
    return f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def rows(group: Group) -> Iterator[str]:
    """Yield the lines of a group."""
    bases = group.bases()
    for each in group.measured.values():
        base, compared = bases[DEFAULTS], [_ratios(each, bases[name]) for name in (DEFAULTS, BEST)]
        cells = [
            *(group.title, group.dtype, each.name),
            f"{statistics.median(each.rates):,.0f} ({max(each.rates):,.0f})",
            *(f"**{cell}**" if cell and each.name == OURS else cell for cell in compared),
            f"{each.share(group.peak):.0%}",
            f"{each.memory / 2**20:,.0f} MiB",
            f"{each.memory / base.memory:.2f}" if base else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _ratios(each: Measured, base: Measured | None) -> str:
    if base is None:
        return ""
    if each is base:
        return "1.00"
    median, low, high = _summarize(each.faster(base))
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def _summarize(values: list[float]) -> list[float]:
    """Return the median, the lowest and the highest."""
    return [statistics.median(values), min(values), max(values)]


def note(plan: Plan) -> str:
    """Return what the updates of a workload are."""
    work = plan.workload
    sizes = [text["size"] for texts in plan.updates for text in texts]
    each = tokens(plan.updates)
    lengths = f"of {sizes[0]} tokens"
    padded = ""
    if not work.is_full:
        mean = statistics.fmean(sizes)
        lengths = f"of {min(sizes)} to {max(sizes)} tokens (mean {mean:.0f})"
        padded = (
            f"; positions a token: Trainer {positions(plan.updates):.2f}, "
            f"grouped {positions(plan.grouped):.2f}, nlpkit 1"
        )
    return (
        f"- {work.name}, {work.size}: updates of {statistics.fmean(each):,.0f} tokens, sequences "
        f"{lengths}, vocabulary {plan.vocabulary:,}{padded}"
    )


CPM_ANT = (
    "- cpm_ant: transformers' class sees the tokens that it is to predict, so that Trainer teaches "
    "it to copy its input; it is compared for speed alone"
)


def as_json(group: Group) -> list[dict[str, Any]]:
    """Return the figures of a group, for programs; `docs/results.py` makes the tables of docs."""
    compared = {"x_trainer": group.bases()[DEFAULTS], "x_best_flags": group.bases()[BEST]}
    return [
        {
            "title": group.title,
            "tokens_per_second": [statistics.median(each.rates), max(each.rates)],
            **{name: base and _summarize(each.faster(base)) for name, base in compared.items()},
            "workload": group.plan.workload.name, "size": group.plan.workload.size_name,
            "type": group.dtype, "subject": each.name, "seconds": each.seconds,
            "tokens": each.tokens, "tokens_per_update": each.updates, "memory_bytes": each.memory,
            "share_of_gemm_peak": each.share(group.peak),
        }
        for each in group.measured.values()
    ]  # fmt: skip
