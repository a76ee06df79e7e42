"""Tables of the runs of a grid: the settings that differ, and the figures.

The figures of a run are those of its best evaluation, by `train.best_by` of its recipe.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nlpkit import registry
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.report.history import FIGURES, History
from nlpkit.report.seeds import summarize
from nlpkit.score import named
from nlpkit.text_table import aligned
from nlpkit.train.state import LOSS

SEED = "seed"
HELD_OUT = "held_out."
_OF_EACH_RUN = ("name", "out")
_MISSING = "–"
Value = str | int | float | None


@dataclass(frozen=True)
class Row:
    """A run: what the settings are that differ, and its figures."""

    history: History
    settings: JsonObject
    figures: dict[str, float | None]

    @property
    def group(self) -> str:
        """The settings but for the seed, as JSON: equal in runs that only differ in the seed."""
        return json.dumps({k: v for k, v in self.settings.items() if k != SEED}, sort_keys=True)


@dataclass(frozen=True)
class Table:
    """Runs with the names of their columns, sorted by the column `sort`."""

    rows: list[Row]
    settings: list[str]
    figures: list[str]
    sort: str

    @property
    def columns(self) -> list[str]:
        """The names of the columns, for `cells`."""
        return ["run", *self.settings, "state", *self.figures]

    def cells(self) -> list[dict[str, Value]]:
        """Return each run as one value for each column, such as for CSV."""
        return [
            {"run": row.history.label, "state": row.history.state}
            | {name: row.figures.get(name) for name in self.figures}
            | {key: _to_value(row.settings.get(key)) for key in self.settings}
            for row in self.rows
        ]


def write_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header; what a row lacks is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def make_table(histories: Sequence[History], sort: str | None = None) -> Table:
    """Return the table of these runs, sorted by a column: the best figure, or the lowest setting.

    Without `sort` it is the figure that selects the best evaluation.

    Raises:
        UsageError: there is no column `sort`.
    """
    keys = dict.fromkeys(key for history in histories for key in history.settings)
    differ = [
        key
        for key in keys
        if key not in _OF_EACH_RUN and len({h.settings.get(key, "null") for h in histories}) > 1
    ]
    rows = [
        Row(h, {key: json.loads(h.settings.get(key, "null")) for key in differ}, collect_figures(h))
        for h in histories
    ]
    names = dict.fromkeys(name for row in rows for name in row.figures)
    shown = [n for n in names if any(row.figures.get(n) is not None for row in rows)]
    if sort is None:
        sort = f"{HELD_OUT}{histories[0].best_by}" if histories else LOSS
        sort = next((name for name in (sort, LOSS, "steps") if name in shown), "run")
    table = Table(rows, differ, shown, sort)
    if sort not in table.columns:
        near = registry.suggest(sort, table.columns) or f"; columns: {', '.join(table.columns)}"
        raise UsageError(f"--sort {sort}: no such column{near}")
    rows.sort(key=lambda row: _sort_key(row, sort))
    return table


def collect_figures(history: History) -> dict[str, float | None]:
    """Return the steps and the last training loss of a run, and its best evaluation."""
    found: dict[str, float | None] = {"steps": history.last_step}
    found[LOSS] = history.steps[-1].get(LOSS) if history.steps else None
    if history.best is not None:
        best = history.evaluations[history.best[0]]
        found["best_step"] = history.best[0]
        figures = {name: best.get(name) for name in FIGURES} | best["metrics"]
        found |= {f"{HELD_OUT}{name}": value for name, value in figures.items()}
    return {k: v if v is not None and math.isfinite(v) else None for k, v in found.items()}


def _sort_key(row: Row, sort: str) -> tuple[object, ...]:
    """Return the key that sorts a run: what is undefined is last, and runs by their settings."""
    if sort in ("run", "state"):
        return (row.history.label if sort == "run" else row.history.state,)
    value = row.settings[sort] if sort in row.settings else row.figures.get(sort)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value is None, 1, json.dumps(value)
    return value is None, 0, value if is_lower_better(sort) or sort in row.settings else -value


def is_lower_better(figure: str) -> bool:
    """Return whether the lowest value of a figure is the best one."""
    score = figure.removeprefix(HELD_OUT)
    if score == figure or score in FIGURES or score.startswith("loss."):
        # Parts of a loss may be shares of right answers, or the margin of rewards.
        return not score.endswith(("_accuracy", "_recall", "_margin"))
    try:
        return named.lower_is_better(score)
    except named.WrongScore:  # a score of another version
        return False


def group_seeds(of: Table) -> list[JsonObject]:
    """Return the runs with equal settings but for the seed, in the order of their means.

    Each group has `settings`, the `seeds`, `values`, `mean` and `std` of the figure of the table.
    Only finished runs have a value; there are no groups if no two runs differ in the seed alone.
    """
    rows: dict[str, list[Row]] = {}
    for row in of.rows:
        rows.setdefault(row.group, []).append(row)
    if len(rows) == len(of.rows) or of.sort not in of.figures:
        return []
    found = []
    for members in rows.values():
        finished = list_finished(members, of.sort)
        summary = summarize([value for _, value in finished])
        settings = {key: value for key, value in members[0].settings.items() if key != SEED}
        found.append({"settings": settings, "seeds": [seed for seed, _ in finished], **summary})
    sign = 1 if is_lower_better(of.sort) else -1
    return sorted(found, key=lambda g: (g["mean"] is None, sign * (g["mean"] or 0)))


def list_finished(rows: Sequence[Row], figure: str) -> list[tuple[object, float]]:
    """Return seed and value of the finished runs that have this figure."""
    finished = [row for row in rows if row.history.state == "finished"]
    found = [(row.settings.get(SEED), row.figures.get(figure)) for row in finished]
    return [(seed, value) for seed, value in found if value is not None]


def format_table(of: Table) -> str:
    """Return the table as aligned text, and that of its groups."""
    cells = [[format_value(row.get(name), name) for name in of.columns] for row in of.cells()]
    tables = [[of.columns, *cells]]
    if found := group_seeds(of):
        keys = [key for key in of.settings if key != SEED]
        rows = [[*keys, "seeds", f"mean {of.sort}", "std"]]
        for group in found:
            settings = [format_value(_to_value(group["settings"][key]), key) for key in keys]
            figures = [format_value(group[name], of.sort) for name in ("mean", "std")]
            rows.append([*settings, str(len(group["values"])), *figures])
        tables.append(rows)
    return "\n\n".join("\n".join(aligned(rows, numbers=False)) for rows in tables)


def format_value(value: Value, column: str) -> str:
    """Return a value as text: figures with four decimals, settings as they are."""
    if value is None:
        return _MISSING
    is_figure = column == LOSS or column.startswith(HELD_OUT)
    return f"{value:.4f}" if is_figure and isinstance(value, int | float) else str(value)


def _to_value(value: object) -> Value:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False)


def to_json(of: Table) -> JsonObject:
    """Return the table and its groups as plain data."""
    rows = []
    for row in of.rows:
        of_run = {"run": row.history.label, "path": str(row.history.path)}
        of_run["state"] = row.history.state
        rows.append({**of_run, "settings": row.settings, "figures": row.figures})
    return {"sort": of.sort, "rows": rows, "groups": group_seeds(of)}
