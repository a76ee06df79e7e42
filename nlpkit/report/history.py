"""Reads the history of a run from its directory: settings, status, metrics, hashes of the weights.

The run may be finished, still running or killed. The files are recipe.yaml, run.json, metrics.jsonl
and the manifests of the checkpoints. Nothing is written or locked; torch is not imported.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, RECIPE, RunDirectory
from nlpkit.errors import FileError
from nlpkit.recipe import flatten, yaml
from nlpkit.recipe.places import dotted
from nlpkit.train import state

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
    objective, (S,), NaN for a step without targets; `evaluations`: step -> held-out figures;
    `settings`: dotted key -> value as JSON; `weights`: step of a checkpoint -> SHA-256 of its
    weights; `half_lines`: incomplete lines at the end of metrics.jsonl (0 or 1); `spent`: seconds
    that are used of a budget of time.
    """

    label: str
    path: Path
    status: dict[str, Any]
    settings: dict[str, str]
    columns: dict[str, np.ndarray]
    parts: dict[str, np.ndarray]
    evaluations: dict[int, dict[str, Any]]
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


def first_difference(
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
    records, half_lines = _records(path / METRICS)
    if not records and not may_be_empty:
        raise FileError(f"{path}: nothing to report yet: no step is in {METRICS}")
    status = RunDirectory(path).status()
    if not isinstance(status, dict):
        raise FileError(f"{path / 'run.json'}: not a JSON object")
    where = path / METRICS
    used = [record.get("spent") for record in records]
    steps = [record for record in records if "held_out" not in record]
    names = sorted({name for record in steps for name in _losses(record)})
    return History(
        label=label,
        path=path,
        status=status,
        settings=_settings(path / RECIPE),
        columns={name: _column(where, records, steps, name) for name in COLUMNS},
        parts={
            name: _column(where, records, [_losses(record) for record in steps], name)
            for name in names
        },
        evaluations=_evaluations(where, records),
        weights=_weights(path),
        half_lines=half_lines,
        spent=max((float(x) for x in used if isinstance(x, int | float)), default=0.0),
    )


def _records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of metrics.jsonl, and the number of incomplete lines at its end."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    half = 0
    if last:
        if _is_record(last):
            lines.append(last)
        else:
            half = 1
    try:  # several times faster than line by line
        records = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        records = []
    if len(records) != len(lines) or not all(type(record) is dict for record in records):
        number = next((n for n, line in enumerate(lines, 1) if not _is_record(line)), 1)
        raise FileError(f"{path}:{number}: not a JSON object: the line is damaged")
    previous = 0
    for number, record in enumerate(records, 1):
        step = record.get("step")
        if type(step) is not int or step < previous:
            raise FileError(f"{path}:{number}: `step` is {step!r}, expected {previous} or more")
        previous = step
    return records, half


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _losses(record: dict[str, Any]) -> dict[str, Any]:
    losses = record.get("losses")
    return losses if isinstance(losses, dict) else {}


def _scores(figures: dict[str, Any]) -> dict[str, Any]:
    scores = figures.get("metrics")
    return scores if isinstance(scores, dict) else {}


def _column(
    path: Path, records: list[dict[str, Any]], chosen: list[dict[str, Any]], name: str
) -> np.ndarray:
    """Return a column (S,); NaN where a record does not have it."""
    try:
        return np.array([record.get(name) for record in chosen], dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        both = [_losses(record) | record for record in records]
        number = next((n for n, record in enumerate(both, 1) if not _numeric(record, name)), 1)
        raise FileError(f"{path}:{number}: `{name}` is not a number") from error


def _numeric(record: dict[str, Any], name: str) -> bool:
    return isinstance(record.get(name), int | float | None)


def _evaluations(path: Path, records: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    evaluations = {}
    for number, record in enumerate(records, 1):
        if "held_out" not in record:
            continue
        figures = record["held_out"]
        valid = isinstance(figures, dict) and isinstance(figures.get("loss"), int | float)
        if not valid or not all(
            _numeric(values, name)
            for values, names in (
                (figures, ("perplexity", "bits_per_character")),
                (_losses(figures), tuple(_losses(figures))),
                (_scores(figures), tuple(_scores(figures))),
            )
            for name in names
        ):
            raise FileError(f"{path}:{number}: `held_out` is not a set of figures with a `loss`")
        evaluations[record["step"]] = figures | {"metrics": _scores(figures)}
    return evaluations


def _settings(path: Path) -> dict[str, str]:
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


def _weights(path: Path) -> dict[int, str]:
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
