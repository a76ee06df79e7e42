"""Prepares that a run is trained again from what its directory holds: the recipe, data, hashes.

Whatever would make another run of it is found before anything is trained.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nlpkit import recipe
from nlpkit.checkpoints import files, hf_layout, integrity
from nlpkit.checkpoints.run_directory import DATA_FILES, METRICS, RECIPE
from nlpkit.disk import write_json
from nlpkit.errors import FileError, UsageError
from nlpkit.evaluate import source
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.recipe import Resolved
from nlpkit.runs import init_from
from nlpkit.runs.vocabulary import TOKENIZER
from nlpkit.tokenizers.library.source_and_target import FOLDERS
from nlpkit.train import budget
from nlpkit.train.log import Log
from nlpkit.train.signals import StopFlag

_STATE = (files.TRAINING, files.OPTIMIZER_STATE)


def check(run: Path, status: JsonMapping, steps: int | None) -> None:
    """Check that a run with this `run.json` can be trained again and compared, or its `steps`.

    Raises:
        UsageError: it cannot.
        FileError: a file of a checkpoint is not the one that was saved.
    """
    problem = None
    if status.get("diverged") and steps is None:
        problem = "has diverged; compare its first --steps N"
    elif not status.get("finished") and steps is None:
        problem = "is not finished; finish it with its command, or compare its first --steps N"
    elif (processes := status.get("processes", 1)) != 1:
        problem = f"was trained by {processes} processes, whose sums are in another order than here"
    elif begun := status.get("resumed_from"):
        problem = f"was begun from {begun} of another run (--resume); reproduce that run"
    elif changed := status.get("changed_settings"):
        problem = (
            f"was continued with other settings (--allow-change: {', '.join(changed)}), and its "
            "directory has the last ones alone"
        )
    if problem:
        raise UsageError(f"{run} {problem}")
    for saved in files.list_checkpoints(run):
        # The state may be deleted, to save space.
        has_state = all((saved.path / name).exists() for name in _STATE)
        if (damage := integrity.find_corruption(saved.path, has_state)) is not None:
            raise FileError(f"{saved.path}: {damage}")


def load(run: Path, out: Path, status: JsonMapping, should_stop: Callable[[], None]) -> Resolved:
    """Return the recipe of a run, with what was decided when it began, for the directory `out`.

    Raises:
        DataError: a file of its data has changed.
        FileError: a file is missing, or the weights on which it starts have changed.
    """
    plain = recipe.load(str(run / RECIPE))
    changes: JsonObject = {"out": str(out), "train.trackers": [], **_find_parts(run, plain)}
    for part in ("train", "valid"):
        entries = plain.dump()["data"][part]
        if not entries:  # a change to none would replace `data.valid_fraction`
            continue
        found = source.find_recorded(run, plain.base, part, should_stop)
        if found is None:
            raise FileError(f"{run}: has no {DATA_FILES}, so its data cannot be checked")
        changes[f"data.{part}"] = [
            entry | {"hf": None, "split": None} | read
            for entry, read in zip(entries, found, strict=True)
        ]
    if status.get("pairs"):
        found = source.find_recorded(run, plain.base, "pairs", should_stop) or []
        changes["eval.pairs"] = [path for entry in found for path in entry["files"]]
    if status.get("precision"):
        changes["train.precision"] = status["precision"]
    if fitted := status.get("fitted"):
        changes |= {"train.memory": None, "train.tokens_per_batch": fitted[0]}
        changes |= {"train.gradient_checkpointing": True} if fitted[1] else {}
    if start := status.get("source"):
        path = Path(start["path"])
        if not init_from.is_source(path, start["sha256"]):
            raise FileError(f"{path}: missing, or not the weights on which {run} starts (SHA-256)")
        changes["init_from"] = str(path)
    return recipe.load(
        str(run / RECIPE), [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    )


def _find_parts(run: Path, plain: Resolved) -> JsonObject:
    """Return the tokenizers and the frozen models that a recipe names, where the run has them.

    Names in a recipe are relative to its folder, which the run does not know.
    """
    found: JsonObject = {}
    if section := plain.recipe.tokenizer:
        sides = zip(("source.", "target."), (section.source, section.target), FOLDERS, strict=True)
        for key, side, folder in (("", section, ""), *sides):
            if side is not None and side.path is not None:
                found[f"tokenizer.{key}path"] = str(run.absolute() / TOKENIZER / folder)
    objectives, saved = plain.recipe.objective, files.list_checkpoints(run)
    notes: Any = hf_layout.read_notes(saved[0].path).get("objective") if saved else None
    for number, each in enumerate(objectives if notes else ()):
        own = notes[number] if isinstance(notes, list) else notes
        key = f"objective.{number}." if len(objectives) > 1 else "objective."
        frozen = each.objective.frozen
        named = frozen(each.config) if frozen else {}
        found |= {f"{key}{name}": own[name] for name, path in named.items() if path and name in own}
    return found


def keep_times(run: Path, out: Path, seconds: float | None) -> None:
    """Let the steps of a run with a budget of time take the progress that was measured then.

    Raises:
        FileError: it is not recorded for each step.
    """
    if seconds is None or files.list_checkpoints(out):
        return
    ticks = budget.recorded(run / METRICS).ticks
    if sorted(ticks) != [*range(1, len(ticks) + 1)]:
        raise FileError(f"{run / METRICS}: lacks the progress of steps, which a budget needs")
    os.makedirs(out, exist_ok=True)
    budget.write_replay(out / budget.REPLAY, ticks)
    write_json(out / "run.json", {"budget_seconds": seconds})


class Watch(Log):
    """The log of a run that is to equal another: it stops the run with a step of another loss.

    `losses` are those of the other run by step; after `steps`, if given, it stops, too.
    """

    def __init__(
        self, verbosity: int, stop: StopFlag, losses: Mapping[int, float], steps: int | None
    ):
        super().__init__(verbosity)
        self._stop, self._losses, self._steps = stop, losses, steps

    def step(
        self, step: int, total: int | None, progress: float, loss: float, speed: float, left: float
    ) -> None:
        """Show the step; one more than `steps` is taken, so that the last one is evaluated."""
        super().step(step, total, progress, loss, speed, left)
        is_behind = self._steps is not None and step > self._steps
        if is_behind or self._losses.get(step, loss) != loss:
            self._stop.signal = self._stop.signal or signal.SIGALRM
