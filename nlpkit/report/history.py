"""Reads the history of a run from its directory: recipe.yaml, run.json and metrics.jsonl.

The run may be finished, still running or killed. Nothing is written or locked; torch is not
imported.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from nlpkit.checkpoints.nearest import suggest_path
from nlpkit.checkpoints.run_directory import METRICS, RECIPE, RunDirectory
from nlpkit.errors import FileError
from nlpkit.json_types import JsonObject
from nlpkit.recipe import yaml
from nlpkit.recipe.places import dotted, flatten
from nlpkit.train import state

FIGURES = ("loss", "perplexity", "bits_per_character")  # of an evaluation, beside the scores
COLUMNS = (
    "step", "tokens", "targets", "loss", "lr", "grad_norm", "tokens_per_second", "memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """The content of the files of a run.

    `settings`: dotted key -> value as JSON; `steps`: the records of training steps;
    `evaluations`: step -> held-out figures, of which `losses` are those of the parts of the
    objective and `metrics` the scores.
    """

    label: str
    path: Path
    status: JsonObject
    settings: dict[str, str]
    steps: list[JsonObject]
    evaluations: dict[int, JsonObject]
    spent: float = 0.0

    def column(self, name: str) -> np.ndarray:
        """Return one of COLUMNS for all recorded steps (S,); NaN where a step does not have it."""
        return np.array([record.get(name) for record in self.steps], dtype=np.float64)

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The training loss of each part of the objective (S,), NaN for steps without targets."""
        losses = [record.get("losses") or {} for record in self.steps]
        names = sorted({name for each in losses for name in each})
        return {name: np.array([each.get(name) for each in losses], float) for name in names}

    @property
    def objectives(self) -> list[str]:
        """The names of its objectives, and of the members of a mixture."""
        is_name = re.compile(r"objective(\.\d+)?(\.of\.\d+)?\.name").fullmatch
        return [name for key, name in self.settings.items() if is_name(key)]

    @property
    def state(self) -> str:
        """`finished`, `diverged` or `not finished`."""
        if self.status.get("finished"):
            return "finished"
        return "diverged" if self.status.get("diverged") else "not finished"

    @property
    def seconds(self) -> float:
        """What was spent of a budget of time, or the time of all steps."""
        logged = sum(record.get("seconds") or 0.0 for record in self.steps)
        if self.spent or len(self.steps) < 2:
            return self.spent or logged
        # Each record has the time of one step, and `train.log_every` may leave steps out.
        between = self.steps[-1]["step"] - self.steps[0]["step"]
        return float(logged * max(1.0, between / (len(self.steps) - 1)))

    @property
    def last_step(self) -> int:
        """The last step in metrics.jsonl."""
        return max([0, *(record["step"] for record in self.steps[-1:]), *self.evaluations])

    @property
    def best_by(self) -> str:
        """The metric that selects the best evaluation: `loss`, or a score."""
        return json.loads(self.settings.get("train.best_by", "null")) or state.LOSS

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the best evaluation, or None if there is none."""
        step = state.best_step(self.evaluations, self.best_by)
        value = step and state.held_out_value(self.evaluations[step], self.best_by)
        return None if step is None or value is None else (step, value)

    @property
    def last(self) -> JsonObject:
        """The evaluation after the last step, empty if there is none."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else {}

    @property
    def chosen(self) -> JsonObject:
        """The best evaluation; the last one if what selects it is undefined in all of them."""
        return self.last if self.best is None else self.evaluations[self.best[0]]

    @property
    def final(self) -> dict[str, float | None]:
        """The figures of `last`, those of parts as `loss.NAME`; a score may be undefined."""
        figures = {name: self.last[name] for name in FIGURES if name in self.last}
        parts = {f"loss.{name}": loss for name, loss in self.last.get("losses", {}).items()}
        return figures | self.last.get("metrics", {}) | parts

    @property
    def baselines(self) -> dict[str, float]:
        """What the held-out text costs without a model of this run, in nats per token, by name."""
        entropy, ngram = map(self.status.get, ("held_out_unigram_entropy", "held_out_ngram"))
        found = {} if entropy is None else {"unigram entropy": entropy}
        return found | ({f"loss of {ngram['order']}-grams": ngram["nats"]} if ngram else {})

    @property
    def scores(self) -> list[str]:
        """The names of a task's scores in the evaluations, sorted."""
        return sorted({name for each in self.evaluations.values() for name in each["metrics"]})

    @property
    def loss_unit(self) -> str:
        """`nats/token`, or `nats/target` if the evaluations have scores but no perplexity."""
        by_token = any(figures.get("perplexity") for figures in self.evaluations.values())
        return "nats/target" if self.scores and not by_token else "nats/token"


def read(path: Path, label: str, *, may_be_empty: bool = False) -> History:
    """Return the history of a run directory.

    The settings are not validated, so that runs of older versions of nlpkit have reports.

    Raises:
        FileError: it is not a run directory, has an unreadable file, is finished with records that
            end before, or has no step yet and `may_be_empty` is False.
    """
    if path.is_file():
        raise FileError(f"{path}: is a file, not a run directory")
    if not path.is_dir():
        raise FileError(f"{path}: no such run directory{suggest_path(path)}")
    if not (path / RECIPE).is_file():
        raise FileError(f"{path}: not a run directory: it has no {RECIPE}")
    status = RunDirectory(path).status()  # first: a finished run adds no records
    records = _read_records(path / METRICS, bool(status.get("finished")))
    if not records and not may_be_empty:
        raise FileError(f"{path}: nothing to report yet: no step is in {METRICS}")
    if records and status.get("finished") and records[-1]["step"] < (end := status.get("step", 0)):
        what = f"cut: ends at step {records[-1]['step']}, and the run at step {end}; restore it"
        raise FileError(f"{path / METRICS}: {what}")
    named = str(path / RECIPE)
    data = yaml.read(yaml.read_file(path / RECIPE, named), named).data
    settings = {dotted(k): json.dumps(value, ensure_ascii=False) for k, value in flatten(data)}
    steps = [record for record in records if "held_out" not in record]
    evaluations = {
        record["step"]: record["held_out"]
        | {key: record["held_out"].get(key) or {} for key in ("losses", "metrics")}
        for record in records
        if "held_out" in record
    }
    spent = max((record.get("spent") or 0.0 for record in records), default=0.0)
    return History(label, path, status, settings, steps, evaluations, spent)


def _read_records(path: Path, is_finished: bool) -> list[JsonObject]:
    """Return the records; half a line at the end is one that is being written, or was in a kill."""
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    lines = raw.splitlines()
    records: list[JsonObject] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            is_right = _is_record(record, records[-1]["step"] if records else 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_right = False
        if is_right:
            records.append(record)
        elif number < len(lines) or raw.endswith(b"\n") or is_finished:
            raise FileError(
                f"{path}:{number}: damaged: expected a step from that of the line before on, and "
                "its figures as numbers"
            )
    return records


def _is_record(record: JsonObject, last: int) -> bool:
    figures = record.get("held_out", record)
    values = [figures.get(name) for name in (*FIGURES, *COLUMNS)]
    for key in ("losses", "metrics"):
        values += (figures.get(key) or {}).values()
    return (
        type(record["step"]) is int
        and record["step"] >= last
        and all(value is None or type(value) in (int, float) for value in values)
        and ("held_out" not in record or figures["loss"] is not None)
    )


def list_records(histories: Sequence[History]) -> tuple[list[str], list[JsonObject]]:
    """Return the figures of each step and evaluation as a row, and the names of the columns.

    Figures of the held-out data begin `held_out.`; numbers are unrounded.
    """
    rows: list[JsonObject] = []
    for history in histories:
        of_step: dict[int, JsonObject] = {}
        for record in history.steps:
            losses = {f"loss.{name}": loss for name, loss in (record.get("losses") or {}).items()}
            of_step[record["step"]] = {name: record.get(name) for name in COLUMNS} | losses
        for step, each in history.evaluations.items():
            figures = {name: each.get(name) for name in FIGURES} | each["metrics"]
            figures |= {f"loss.{name}": loss for name, loss in each["losses"].items()}
            row = of_step.setdefault(step, {"step": step})
            row |= {f"held_out.{name}": value for name, value in figures.items()}
        rows += [{"run": history.label, **of_step[step]} for step in sorted(of_step)]
    columns = ["run", *COLUMNS, *(f"held_out.{name}" for name in FIGURES)]
    return columns + sorted({name for row in rows for name in row} - {*columns}), rows
