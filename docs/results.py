"""Writes the tables of docs that are made from a file in bench/results.

    python bench/steps.py --json bench/results/steps.json   measures again
    python docs/results.py                                  writes docs/speed.md and the lab's pages

`nlpkit compare experiments/NAME.yaml --json` made bench/results/experiments/NAME.json, to which the
machine and the date are added; each file of bench/results/families has the seeds that one machine
has trained. The other pages of the lab say by which commands the figures in bench/results/lab were
measured; they were written there by hand.

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`, one of bench/results/lab
behind `<!-- table NAME NUMBER -->`, up to the next line that is not of a table.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import families_figure

ROOT = Path(__file__).resolve().parents[1]
STEPS = ROOT / "bench/results/steps.json"
EXPERIMENTS = ROOT / "bench/results/experiments"
FAMILIES = ROOT / "bench/results/families"
FAMILIES_OF_KIND = ("families_lm", "families_encoders")  # experiments, with several seeds
TASKS = {"sst2": "SST-2", "cola": "CoLA", "scitail": "SciTail"}
LAB = ROOT / "bench/results/lab"  # of a page each: the columns and rows of its tables
CLAIMS = {"docs/lab/experiments.md": "abcdefghijklm", "docs/lab/experiments_n.md": "nopqrstuvwxyz"}
_TYPES = ("fp32", "bf16")
Row = dict[str, Any]


def write_steps(rows: Sequence[Row]) -> str:
    """Return the table of every workload, type and subject, as `bench/steps.py` prints it."""
    head = (
        "| workload | type | whose | real tokens/s, median (best) | x Trainer | x best flags "
        "| of GEMM peak | peak memory | x Trainer |\n" + "|---" * 9 + "|"
    )
    lines = [head]
    for row in rows:
        bold = "**" if row["subject"] == "nlpkit" else ""
        median, best = row["tokens_per_second"]
        ratios = [f"{bold}{_ratio(row[name])}{bold}" for name in ("x_trainer", "x_best_flags")]
        cells = [
            *(row["title"], row["type"], row["subject"], f"{median:,.0f} ({best:,.0f})", *ratios),
            f"{row['share_of_gemm_peak']:.0%}",
            f"{row['memory_bytes'] / 2**20:,.0f} MiB",
            f"{_memory(rows, row):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_summary(rows: Sequence[Row]) -> str:
    """Return a row for each workload: how many times as fast as Trainer nlpkit is."""
    head = (
        "| workload | fp32: x Trainer | x best flags | bf16: x Trainer | x best flags "
        "| memory x Trainer |\n" + "|---" * 6 + "|"
    )
    ours = {(row["title"], row["type"]): row for row in rows if row["subject"] == "nlpkit"}
    lines = [head]
    for title in dict.fromkeys(title for title, _ in ours):
        of_types = [ours.get((title, name)) for name in _TYPES]
        cells = [
            "" if row is None else f"{row[name][0]:.2f}"
            for row in of_types
            for name in ("x_trainer", "x_best_flags")
        ]
        memory = ", ".join(f"{_memory(rows, row):.2f}" for row in of_types if row is not None)
        lines.append(f"| {' | '.join([title, *cells, memory])} |")
    return "\n".join(lines)


def _ratio(values: Sequence[float] | None) -> str:
    median, low, high = values or (1.0, 1.0, 1.0)
    return "1.00" if low == median == high == 1 else f"{median:.2f} ({low:.2f}–{high:.2f})"


def _memory(rows: Sequence[Row], row: Row) -> float:
    """Return the memory of a subject as a share of that of Trainer with its defaults."""
    same = [each for each in rows if (each["title"], each["type"]) == (row["title"], row["type"])]
    (base,) = (each for each in same if each["subject"] == "Trainer")
    return float(row["memory_bytes"] / base["memory_bytes"])


def write_experiments(found: Sequence[Row]) -> str:
    """Return for each result of `nlpkit compare` its conditions, seed by seed, and its verdicts."""
    parts = []
    for each in found:
        figures = each["figures"]
        head = ["condition", "parameters", "tokens", "minutes", *figures, *_seeds(figures)]
        rows = [
            [
                name,
                f"{row['parameters']:,}",
                f"{row['tokens']:,.0f}",
                f"{row['seconds'] / 60:.1f}",
                *(_write_mean(row[key]) for key in figures),
                *(_write_values(row[key]["values"]) for key in figures),
            ]
            for name, row in each["conditions"].items()
        ]
        title = f"## {each['experiment']}\n\n{each['claim']}.\n{each['date']}, {each['machine']}."
        parts.append("\n\n".join([title, write_table(head, rows), write_verdicts(each)]))
    return "\n\n".join(parts)


def write_verdicts(result: Row) -> str:
    """Return a line for each expectation of a result of `nlpkit compare`, wrapped."""
    said = [f"- {one['expected']}: {one['text']}" for one in result["expectations"]]
    return "\n".join(textwrap.fill(each, 118, subsequent_indent="  ") for each in said)


def merge_families(found: Sequence[Row]) -> dict[str, Row]:
    """Return of each family its size, what it read, and each figure as a list over seeds."""
    families: dict[str, Row] = {}
    for conditions in (each["conditions"] for each in found):
        for name in [name for name in conditions if name.partition("_")[2] not in TASKS]:
            row = families.setdefault(name, {"parameters": conditions[name]["parameters"]})
            figures = {key: [conditions[name][key]] for key in ("steps", "tokens", "flops")}
            for key in ("bits_per_character", "pairs"):
                figures[key] = conditions[name][key]["values"]
            for task in TASKS:
                of_task = conditions.get(f"{name}_{task}", {})
                by_score = (
                    of_task.get(key, {}).get("values") for key in ("accuracy", "exact_match")
                )
                scores = [values for values in by_score if values]
                figures[task] = [
                    next((value for value in values if value is not None), None)
                    for values in zip(*scores, strict=True)
                ]
            for key, values in figures.items():
                row[key] = row.get(key, []) + [each for each in values if each is not None]
    return families


def write_families(families: dict[str, Row]) -> str:
    """Return a row for each family: what it read, and its figures, means over seeds."""
    tasks = [task for task in TASKS if any(row[task] for row in families.values())]
    head = ["family", "parameters", "tokens read", "FLOPs", "bits a character", "pairs"]
    rows = [
        [
            name,
            f"{row['parameters']:,}",
            f"{statistics.fmean(row['tokens']) / 1e6:.2f} million",
            f"{statistics.fmean(row['flops']):.1e}",
            *(_write_spread(row[key]) for key in ("bits_per_character", "pairs", *tasks)),
        ]
        for name, row in families.items()
    ]
    return write_table([*head, *(TASKS[task] for task in tasks)], rows)


def _write_spread(values: Sequence[float]) -> str:
    """Return the mean, with the deviation if there is more than one value."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def _write_mean(measured: Row) -> str:
    """Return mean and deviation; a condition has no figure of what its base is tuned for."""
    if measured["mean"] is None:
        return "–"
    return f"{measured['mean']:.3f} ± {measured['std']:.3f}"


def _write_values(values: Sequence[float | None]) -> str:
    return ", ".join("–" if value is None else f"{value:.3f}" for value in values)


def _seeds(figures: Sequence[str]) -> list[str]:
    return [f"{name}, each seed" for name in figures]


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "docs/speed.md": write_summary,
    "docs/lab/speed_bench.md": write_steps,
}


def fill(page: str, name: str, table: str) -> str:
    """Return a page with a table between its marks; raise `ValueError` if it has no marks."""
    marks = f"<!-- table {name} -->", "<!-- end of table -->"
    pattern = f"{marks[0]}.*?{marks[1]}"
    if not re.search(pattern, page, re.DOTALL):
        raise ValueError(f"no {marks[0]}")
    made = f"{marks[0]}\n\n{table}\n\n{marks[1]}"
    return re.sub(pattern, lambda _: made, page, flags=re.DOTALL)


def fill_next(page: str, name: str, table: str) -> str:
    """Return a page with the table behind its mark; raise `ValueError` if it has no mark."""
    mark = f"<!-- table {name} -->"
    if mark not in page:
        raise ValueError(f"no {mark}")
    before, after = page.split(mark)
    rest = re.sub(r"^\n\n(\|.*\n)*", "", after)
    return f"{before}{mark}\n\n{table}\n{rest}"


def write_pages() -> dict[str, str]:
    """Return each page with its tables as bench/results has them."""
    rows = json.loads(STEPS.read_text("utf-8"))
    found = [json.loads(file.read_text("utf-8")) for file in sorted(EXPERIMENTS.glob("*.json"))]
    pages = {
        path: fill((ROOT / path).read_text("utf-8"), STEPS.name, table(rows))
        for path, table in TABLES.items()
    }
    for path, letters in CLAIMS.items():
        own = write_experiments([each for each in found if each["experiment"][0] in letters])
        pages[path] = fill((ROOT / path).read_text("utf-8"), EXPERIMENTS.name, own)
    measured = [json.loads(file.read_text("utf-8")) for file in sorted(FAMILIES.glob("*.json"))]
    families, path = merge_families(measured), "docs/families.md"
    text = fill((ROOT / path).read_text("utf-8"), FAMILIES.name, write_families(families))
    for name in FAMILIES_OF_KIND:
        result = json.loads((ROOT / f"bench/results/{name}.json").read_text("utf-8"))
        made = f"{write_families(merge_families([result]))}\n\n{write_verdicts(result)}"
        text = fill(text, name, made)
    pages[path] = text
    pages["docs/families.svg"] = families_figure.draw(families, TASKS)
    for file in sorted(LAB.glob("*.json")):
        # claims_all is of docs/claims.md: the lab has a page of that name, too.
        in_lab = (ROOT / f"docs/lab/{file.stem}.md").is_file()
        path = f"docs/{'lab/' if in_lab else ''}{file.stem.removesuffix('_all')}.md"
        text = (ROOT / path).read_text("utf-8")
        for number, table in enumerate(json.loads(file.read_text("utf-8"))["tables"], 1):
            made = write_table(table["columns"], table["rows"])
            text = fill_next(text, f"{file.stem} {number}", made)
        pages[path] = text
    return pages


def main() -> None:
    """Write the pages."""
    for path, text in write_pages().items():
        (ROOT / path).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
