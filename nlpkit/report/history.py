"""Reads the history of a run from its directory: settings, status, metrics, hashes of the weights.

The run may be finished, still running or killed. The files are recipe.yaml, run.json, metrics.jsonl
and the manifests of the checkpoints. Nothing is written or locked; torch is not imported.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, RECIPE, RunDirectory
from nlpkit.errors import FileError
from nlpkit.recipe import yaml
from nlpkit.recipe.places import dotted, flatten
from nlpkit.train import state

Record = dict[str, Any]  # a JSON object

FIGURES = ("loss", "perplexity", "bits_per_character")  # of an evaluation, beside the scores
COLUMNS = (
    "step", "tokens", "targets", "loss", "lr", "grad_norm", "tokens_per_second", "memory_bytes",
)  # fmt: skip
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")  # a checkpoint has one of them
# Columns that are hashed for the receipt; equal runs have bit-for-bit equal values.
ORDER, RESULT = ("step", "tokens", "targets"), ("step", "loss", "lr", "grad_norm")
_IDENTITY = ("name", "out")


@dataclass(frozen=True)
class History:
    """The content of the files of a run.

    `columns`: each of COLUMNS, (S,) for the S recorded steps; `parts`: the loss of each part of the
    objective, (S,), NaN for a step without targets; `evaluations`: step -> held-out figures, of
    which `losses` are those of the parts and `metrics` the scores;
    `settings`: dotted key -> value as JSON; `weights`: step of a checkpoint -> SHA-256 of its
    weights; `half_lines`: incomplete lines at the end of metrics.jsonl (0 or 1); `spent`: seconds
    that are used of a budget of time.
    """

    label: str
    path: Path
    status: Record
    settings: dict[str, str]
    columns: dict[str, np.ndarray]
    parts: dict[str, np.ndarray]
    evaluations: dict[int, Record]
    weights: dict[int, str]
    half_lines: int
    spent: float = 0.0

    @property
    def state(self) -> str:
        """`finished`, `diverged` or `not finished`."""
        if self.status.get("finished"):
            return "finished"
        return "diverged" if self.status.get("diverged") else "not finished"

    @property
    def last_step(self) -> int:
        """The last step in metrics.jsonl."""
        return max([0, *self.columns["step"][-1:].astype(int).tolist(), *self.evaluations])

    @property
    def best_by(self) -> str:
        """The metric that selects the best evaluation: `loss`, or a score."""
        # Recipes of older runs may not have it.
        metric = json.loads(self.settings.get("train.best_by", "null"))
        return metric if isinstance(metric, str) else state.LOSS

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the best evaluation, or None if there is none."""
        step = state.best_step(self.evaluations, self.best_by)
        value = step and state.held_out_value(self.evaluations[step], self.best_by)
        return None if step is None or value is None else (step, value)

    @property
    def entropy(self) -> float | None:
        """The unigram entropy of the held-out text, in nats per token."""
        value = self.status.get("held_out_unigram_entropy")
        return float(value) if isinstance(value, int | float) else None

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of a task's scores in the evaluations, sorted."""
        return tuple(sorted({name for f in self.evaluations.values() for name in f["metrics"]}))

    @property
    def loss_unit(self) -> str:
        """`nats/token`, or `nats/row` if the evaluations have scores but no perplexity."""
        by_row = bool(self.scores) and not any(
            isinstance(figures.get("perplexity"), int | float)
            for figures in self.evaluations.values()
        )
        return "nats/row" if by_row else "nats/token"

    def settings_hash(self) -> str:
        """Return the SHA-256 of all settings except the run's name and directory."""
        compared = {k: v for k, v in self.settings.items() if k not in _IDENTITY}
        return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()

    def hashes(self, columns: tuple[str, ...], steps: Iterable[int]) -> dict[int, str]:
        """Return, for each of `steps` that was recorded, the SHA-256 of all records up to it.

        The rows of the columns are hashed as little-endian float64, equal on all machines.
        """
        rows = np.stack([self.columns[name] for name in columns], axis=1).astype("<f8")
        digest, done, hashes = hashlib.sha256(), 0, {}
        ends = {int(step): index + 1 for index, step in enumerate(self.columns["step"])}
        for step in sorted({*steps} & ends.keys()):
            digest.update(rows[done : ends[step]].tobytes())
            done = ends[step]
            hashes[step] = digest.hexdigest()
        return hashes


def find_first_difference(
    one: History, other: History, columns: tuple[str, ...]
) -> tuple[int | None, int]:
    """Return the first differing common step (or None), and the number of common steps."""
    steps, a, b = np.intersect1d(one.columns["step"], other.columns["step"], return_indices=True)
    differs = np.zeros(len(steps), bool)
    for name in columns:
        x, y = one.columns[name][a], other.columns[name][b]
        differs |= (x != y) & ~(np.isnan(x) & np.isnan(y))
    return (int(steps[differs.argmax()]) if differs.any() else None), len(steps)


def read(path: Path, label: str, *, may_be_empty: bool = False) -> History:
    """Return the history of a run directory.

    Raises:
        FileError: it is not a run directory, has an unreadable file, or has no step yet and
            `may_be_empty` is False.
    """
    if not path.is_dir():
        raise FileError(f"{path}: no such run directory")
    if not (path / RECIPE).is_file():
        raise FileError(f"{path}: not a run directory: it has no {RECIPE}")
    records, half_lines = _read_records(path / METRICS)
    if not records and not may_be_empty:
        raise FileError(f"{path}: nothing to report yet: no step is in {METRICS}")
    status = RunDirectory(path).status()
    if not isinstance(status, dict):
        raise FileError(f"{path / 'run.json'}: not a JSON object")
    used = [record.get("spent") for record in records]
    steps = [record for record in records if "held_out" not in record]
    losses = [_get_mapping(record, "losses") for record in steps]
    return History(
        label=label,
        path=path,
        status=status,
        settings=_read_settings(path / RECIPE),
        columns={name: _make_column(steps, name) for name in COLUMNS},
        parts={
            name: _make_column(losses, name)
            for name in sorted({n for each in losses for n in each})
        },
        evaluations=_find_evaluations(records),
        weights=_read_weights(path),
        half_lines=half_lines,
        spent=max((float(x) for x in used if isinstance(x, int | float)), default=0.0),
    )


def read_evaluations(path: Path) -> dict[int, Record]:
    """Return the held-out figures of a run directory by step; raise `FileError` as `read` does."""
    return _find_evaluations(_read_records(path / METRICS)[0])


def _find_evaluations(records: Sequence[Record]) -> dict[int, Record]:
    return {
        record["step"]: record["held_out"]
        | {key: _get_mapping(record["held_out"], key) for key in ("losses", "metrics")}
        for record in records
        if "held_out" in record
    }


def _read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of metrics.jsonl, and the number of incomplete lines at its end."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    is_half = bool(last) and _parse(last) is None
    if last and not is_half:
        lines.append(last)
    records: list[Record] = []
    previous = 0
    for number, line in enumerate(lines, 1):
        record = _parse(line)
        mistake = _find_mistake(record, previous)
        if record is None or mistake:
            raise FileError(f"{path}:{number}: {mistake}")
        previous = record["step"]
        records.append(record)
    return records, int(is_half)


def _parse(line: bytes) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _find_mistake(record: Record | None, previous: int) -> str:
    """Return what is wrong with a record; empty if nothing is."""
    if record is None:
        return "not a JSON object: the line is damaged"
    step = record.get("step")
    if type(step) is not int or step < previous:
        return f"`step` is {step!r}, expected {previous} or more"
    if "held_out" in record:
        figures = record["held_out"]
        is_valid = isinstance(figures, dict) and figures.get("loss") is not None
        if not is_valid or _find_text(figures, FIGURES):
            return "`held_out` is not a set of figures with a `loss`"
        return ""
    name = _find_text(record, COLUMNS)
    return f"`{name}` is not a number" if name else ""


def _find_text(figures: Record, names: Sequence[str]) -> str:
    """Return the name of the first value that is not a number; empty if all are."""
    values = {name: figures.get(name) for name in names}
    values |= _get_mapping(figures, "losses") | _get_mapping(figures, "metrics")
    wrong = (name for name, value in values.items() if not _is_number(value))
    return next(wrong, "")


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() < 1024  # else it is no float64
    return value is None or isinstance(value, float)


def _get_mapping(record: Record, key: str) -> Record:
    """Return the mapping `key` of a record: `losses` by part, or `metrics` by name."""
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _make_column(records: Sequence[Record], name: str) -> np.ndarray:
    """Return a column (S,); NaN where a record does not have it."""
    return np.array([record.get(name) for record in records], dtype=np.float64)


def _read_settings(path: Path) -> dict[str, str]:
    """Return all settings as JSON, by dotted key.

    They are not validated, so that runs of older versions of nlpkit have reports.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    data = yaml.read(raw, str(path)).data
    if not isinstance(data, dict):
        raise FileError(f"{path}: not a recipe: expected settings (`key: value`)")
    settings = {}
    for keys in flatten(data):
        value: Any = data
        for key in keys:
            value = value[key]
        settings[dotted(keys)] = json.dumps(value, ensure_ascii=False)
    return settings


def _read_weights(path: Path) -> dict[int, str]:
    """Return the SHA-256 of each checkpoint's weights, from its manifest, by step."""
    hashes = {}
    for checkpoint in reversed(files.list_checkpoints(path)):
        manifest = checkpoint.path / files.MANIFEST
        try:
            named = json.loads(manifest.read_text(encoding="utf-8"))["files"]
            name = next((name for name in WEIGHTS if name in named), WEIGHTS[0])
            hashes[checkpoint.step] = str(named[name]["sha256"])
        except FileNotFoundError:
            continue  # the run has just removed this checkpoint
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{manifest}: cannot be read: {error}") from error
    return hashes
