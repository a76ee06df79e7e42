"""The records of runs as CSV: a row for each step and evaluation, with every figure of both."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence

from nlpkit.report.history import COLUMNS, FIGURES, History, Record


def write_steps(histories: Sequence[History]) -> str:
    """Return a row for each step of each run; figures of the held-out data begin `held_out.`.

    A figure that was not recorded at a step is empty. Numbers are unrounded.
    """
    rows = [row for history in histories for row in _make_rows(history)]
    seen = {name for row in rows for name in row}
    parts = sorted(name for name in seen if name.startswith("loss."))
    held_out = [f"held_out.{name}" for name in FIGURES]
    others = sorted(name for name in seen if name.startswith("held_out.") and name not in held_out)
    return write_csv(rows, ["run", *COLUMNS[:4], *parts, *COLUMNS[4:], *held_out, *others])


def write_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header; what a row lacks is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _make_rows(history: History) -> list[Record]:
    """Return the figures of each step that has any, in the order of the steps."""
    rows: dict[int, Record] = {}
    names = {name: history.columns[name] for name in COLUMNS}
    names |= {f"loss.{name}": values for name, values in history.parts.items()}
    for index, step in enumerate(history.columns["step"].astype(int).tolist()):
        rows[step] = {name: _format_number(float(values[index])) for name, values in names.items()}
    for step, figures in history.evaluations.items():
        found = {name: figures.get(name) for name in FIGURES}
        found |= {f"loss.{name}": value for name, value in figures["losses"].items()}
        found |= figures["metrics"]
        row = rows.setdefault(step, {"step": step})
        row |= {f"held_out.{name}": value for name, value in found.items() if value is not None}
    return [{"run": history.label, **rows[step]} for step in sorted(rows)]


def _format_number(value: float) -> float | int | str:
    """Return a whole number without a decimal point, and nothing for NaN."""
    if math.isnan(value):
        return ""
    return int(value) if value.is_integer() else value
