"""Whether settings differ: in the figures of their seeds, and on the rows that each run has scored.

Each side is the runs of one setting, and is compared with the first one. What cannot be compared is
said, a line each: another evaluated text, another unit of the loss, a side without the figure.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from nlpkit.checkpoints.run_directory import DATA_FILES
from nlpkit.disk import file_sha256, read_json
from nlpkit.errors import DataError, FileError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.report import find_runs, seeds
from nlpkit.report.history import FIGURES, History
from nlpkit.report.sweep import HELD_OUT, Row, Table, list_finished
from nlpkit.train.state import LOSS

Sides = Mapping[str, Sequence[Row]]
_PER_TARGET = (LOSS, f"{HELD_OUT}loss", f"{HELD_OUT}perplexity")
_PER_CHARACTER = f"{HELD_OUT}bits_per_character"
_OTHER_TOKENS = "per token of another tokenizer"
_PAIRS = f"{HELD_OUT}pairs"
_READING = ("max_rows", "text_key", "rows", "history", "valid_group", "line_break")
# As `repr` writes what a regression predicts.
_NUMBER = re.compile(r"-?\d+\.\d{5,}(e[-+]\d+)?")


@dataclass(frozen=True)
class Compared:
    """The difference of two sides in a figure; `unit` is what was counted: seed or row."""

    figure: str
    first: str
    other: str
    unit: str
    found: seeds.Difference

    def __str__(self) -> str:
        found, unit = self.found, f"{self.unit}s"
        names, values = (self.first, self.other), zip(found.means, found.counts, strict=True)
        sides = [
            f"{name} {mean:.4f} ({number_of(count, unit)})"
            for name, (mean, count) in zip(names, values, strict=True)
        ]
        head = f"{self.figure}: {', '.join(sides)}: difference {found.difference:+.4f}"
        if found.interval is None:
            return f"{head}: {found.verdict}: train both with --seeds 3 or more"
        covers = " (noise of rows, not of seeds)" if self.unit == "row" else ""
        said = f"{found.format_interval()} ({found.test}, p = {found.p:.2g})"
        return f"{head}, {said}: {found.verdict}{covers}"

    def to_json(self) -> JsonObject:
        """Return the difference as plain data."""
        said = asdict(self)
        found, unit = said.pop("found"), said.pop("unit")
        counts = {f"{unit}s": found.pop("counts"), "level": seeds.LEVEL}
        more = {"difference": self.found.difference, "verdict": self.found.verdict}
        return said | found | counts | more


def find_sides(paths: Sequence[Path], table: Table, say: Callable[[str], None]) -> Sides:
    """Return the runs of each side; a side is a directory, or named runs of one setting.

    There are none if a directory has runs of several settings, or if all have the same one.
    """
    inside = {path: find_runs(path) for path in dict.fromkeys(paths)}
    of_path = {row.history.path: row for row in table.rows}
    sides: dict[str, list[Row]] = {}
    for path, runs in inside.items():
        rows = [of_path[run] for run in runs or [path] if run in of_path]
        if len({row.group for row in rows}) > 1:
            say(f"{path} holds runs of several settings: no difference is computed; name "
                "directories of one setting each")  # fmt: skip
            return {}
        for row in rows:
            sides.setdefault(str(path) if any(inside.values()) else row.group, []).append(row)
    if not any(inside.values()):
        sides = {rows[0].history.label: rows for rows in sides.values()}
    return sides if len(sides) > 1 else {}


def compare_figures(sides: Sides, table: Table, say: Callable[[str], None]) -> list[Compared]:
    """Return the difference in the figure of the table, the loss and each score, to the first side.

    Only finished runs count.
    """
    if left_out := sum(r.history.state != "finished" for rows in sides.values() for r in rows):
        say(f"{left_out} not finished, so not compared")
    first, *others = sides
    compared = []
    for name in others:
        both = [row.history for row in (*sides[first], *sides[name])]
        runs = [history for history in both if history.state == "finished"]
        described = [_describe_rows(run) for run in runs]
        by_hash = all(hashes for _, hashes in described)
        if len({each[by_hash] for each in described}) > 1:
            say(f"not comparable: {name} is evaluated on other data than {first} (data.valid)")
            continue
        figures = list_figures(table)
        if problem := _find_other_unit(runs):
            say(f"not comparable: the loss of {name} is {problem} than that of {first}")
            figures = [each for each in figures if each not in _PER_TARGET]
            is_known = problem == _OTHER_TOKENS and _PER_CHARACTER in table.figures
            figures += [_PER_CHARACTER] if is_known else []
        if _PAIRS in figures and len({*map(_name_pairs, runs)}) > 1:
            say(f"not comparable: {name} is judged by other pairs than {first} (eval.pairs)")
            figures = [each for each in figures if each != _PAIRS]
        for figure in dict.fromkeys(figures):
            values = {s: [v for _, v in list_finished(sides[s], figure)] for s in (first, name)}
            if without := [side for side, of in values.items() if not of]:
                say(f"not comparable: no finished run of {' or '.join(without)} has {figure}")
            else:
                found = seeds.compare(values[first], values[name])
                compared.append(Compared(figure, first, name, "seed", found))
    return compared


def list_figures(table: Table) -> list[str]:
    """Return the figure of the table, the held-out loss and the scores; others follow from it."""
    shown = [each.removeprefix(HELD_OUT) for each in table.figures if each.startswith(HELD_OUT)]
    named = [name for name in shown if name not in FIGURES[1:]]
    sort = [table.sort] if table.sort in table.figures else []
    return [*sort, *(f"{HELD_OUT}{name}" for name in named)]


def _describe_rows(run: History) -> tuple[str, str]:
    """Return the settings that name the evaluated text, and the hashes of its files, if any."""
    share = run.settings.get("data.valid_fraction", "0")
    part = "valid" if json.loads(share) == 0 else "train"
    settings = {key: of for key, of in run.settings.items() if key.startswith(f"data.{part}")}
    named = json.dumps(settings, sort_keys=True)
    if not (run.path / DATA_FILES).is_file():
        return named, ""
    try:
        sources = read_json(run.path / DATA_FILES)[part]
        hashes = sorted(file["sha256"] for files in sources for file in files)
    except (KeyError, TypeError) as error:
        raise FileError(f"{run.path / DATA_FILES}: not a record of files: {error!r}") from error
    # How the files are read; what is not said, or null, changes nothing.
    is_reading = re.compile(rf"data\.({part}\.\d+\.)?({'|'.join(_READING)})(\.\d+)?").fullmatch
    how = [f"{k}={v}" for k, v in run.settings.items() if is_reading(k) and v != "null"]
    return named, " ".join([share, *hashes, *sorted(how)])


def _find_other_unit(runs: Sequence[History]) -> str | None:
    """Return why losses are not in one unit, or None."""
    if len({str(run.objectives) for run in runs}) > 1:
        return "of another objective (objective.name)"
    if len({*map(_hash_tokenizer, runs)}) > 1 and runs[0].loss_unit == "nats/token":
        return _OTHER_TOKENS
    return None


def _name_pairs(run: History) -> str:
    """Return what the run recorded of its pairs; of an older run, the settings that name them."""
    if pairs := run.status.get("pairs"):
        return json.dumps(pairs, sort_keys=True)
    return str([(k, v) for k, v in run.settings.items() if k.startswith("eval.") and "pairs" in k])


def _hash_tokenizer(run: History) -> str:
    files = sorted((run.path / "tokenizer").rglob("*"))
    # The settings beside the vocabulary have the length of an example.
    return file_sha256(*[f for f in files if f.is_file() and f.name != "tokenizer_config.json"])


def compare_rows(sides: Sides, file: str) -> list[Compared]:
    """Return the difference of each side to the first one in what `RUN/file` says of each row.

    It is compared twice: the means of the runs (the noise of seeds), and the means over runs of
    each row, by pairs (the noise of the choice of rows; the seeds are taken as they are).

    Raises:
        DataError: a file is empty, has lines of another kind, or other rows than the first one.
        FileError: a run lacks the file.
    """
    credit: dict[str, np.ndarray] = {}
    known: tuple[Path, list[str]] | None = None
    for name, runs in sides.items():
        read = []
        histories = [row.history for row in runs]
        for path in [each.path / file for each in histories if each.state == "finished"]:
            places, values = read_rows(path)
            known = known or (path, places)
            if places != known[1]:
                raise DataError(f"not comparable: {path} has other rows than {known[0]}")
            read.append(values)
        if not read:
            raise DataError(f"not comparable: no run of {name} is finished")
        credit[name] = np.array(read)  # (runs, rows)
    first, *others = credit
    compared = []
    for name in others:
        one, other = credit[first], credit[name]
        of_seeds = seeds.compare(one.mean(1).tolist(), other.mean(1).tolist())
        compared.append(Compared(file, first, name, "seed", of_seeds))
        of_rows = seeds.compare_pairs(one.mean(0).tolist(), other.mean(0).tolist())
        compared.append(Compared(file, first, name, "row", of_rows))
    return compared


def read_rows(path: Path) -> tuple[list[str], list[float]]:
    """Return what names each row of a file of `--predictions`, and its credit: 1 if it is right."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeError) as error:
        raise FileError(f"{path}: cannot be read: write it with --predictions {path}") from error
    places, credit, predicted = [], [], []
    for number, line in enumerate(lines if lines != [""] else [], 1):
        try:
            row = json.loads(line)
            credit.append(float(row["credit"] if "credit" in row else _is_right(row)))
            if not math.isfinite(credit[-1]):
                raise ValueError
            predicted.append(row.get("prediction"))
            places.append(Path(row["place"]).name if "place" in row else str(row["target"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}:{number}: no row of --predictions, with credit, or prediction and target"
            ) from error
    if len(credit) < 2:
        raise DataError(f"{path}: {number_of(len(credit), 'rows')}; at least 2 can be compared")
    if not any(credit) and all(_NUMBER.fullmatch(str(each)) for each in predicted):
        raise DataError(f"{path}: predictions are numbers, of which none is right or wrong")
    return places, credit


def _is_right(row: JsonObject) -> bool:
    """Return whether the prediction is the right answer, or one of several."""
    target = row["target"]
    return row["prediction"] in (target if isinstance(target, list) else [target])
