"""Prepares that a run is trained again from what its directory holds: the recipe, data, hashes.

Whatever would make another run of it is found before anything is trained. Imports no torch.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import DATA_FILES, METRICS, RECIPE, RunDirectory
from nlpkit.disk import file_sha256, read_json, write_json, write_text
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.train.log import Log
from nlpkit.train.signals import StopFlag

_WEIGHTS = (".safetensors", ".bin", ".pt")
_PARTS = ("train", "valid")


def describe_source(path: Path) -> JsonObject:
    """Return the path and the hash of the weights of a checkpoint on which a run starts."""
    inside = [path] if path.is_file() else sorted(path.iterdir())
    weights = [each for each in inside if each.suffix in _WEIGHTS]
    return {"path": str(path.absolute()), "sha256": file_sha256(*weights)}


def check(run: Path, steps: int | None) -> JsonObject:
    """Return `run.json` of a run that can be trained again, or its first `steps`.

    Raises:
        FileError: it is not the directory of a run.
        UsageError: it cannot be trained again; the line says why.
    """
    if not run.is_dir():
        raise FileError(f"{run}: no such run directory")
    if not (run / RECIPE).is_file():
        raise FileError(f"{run}: not a run directory: it has no {RECIPE}")
    status = RunDirectory(run).status()
    if not status:
        raise FileError(f"{run}: not the directory of a run that has begun: it has no run.json")
    if problem := _find_problem(status, steps):
        raise UsageError(f"{run} {problem}")
    return status


def _find_problem(status: JsonMapping, steps: int | None) -> str | None:
    """Return why a run cannot be trained again, or None."""
    if not status.get("finished") and steps is None:
        return "is not finished; finish it with its command, or compare its beginning: --steps N"
    if (processes := status.get("processes", 1)) != 1:
        return (
            f"was trained by {processes} processes, whose sums are added in another order by one; "
            "reproduce trains with one"
        )
    if begun := status.get("resumed_from"):
        return (
            f"was begun from {begun} of another run (--resume), which is not in its directory; "
            "reproduce that run"
        )
    if changed := status.get("changed_settings"):
        return (
            f"was continued with other settings (--allow-change: {', '.join(changed)}), and its "
            "directory has the last ones alone"
        )
    return None


def find_files(run: Path, should_stop: Callable[[], None]) -> dict[str, list[list[str]]]:
    """Return the paths of the files of `data.train` and `data.valid`, by source.

    Raises:
        FileError: files are missing.
        DataError: files have another content than the run has read.
    """
    record = read_json(run / DATA_FILES)
    missing, changed = [], []
    for each in (entry for part in _PARTS for source in record[part] for entry in source):
        if each["name"] == "-":
            raise UsageError(f"{run} read its text from stdin, which cannot be read again")
        path = Path(each["path"])
        if not path.is_file():
            missing.append(each["path"])
        elif file_sha256(path, should_stop=should_stop) != each["sha256"]:
            changed.append(each["path"])
    if missing:
        raise FileError(f"{_name(missing)}: no such file any more; {run} was trained on it")
    if changed:
        raise DataError(f"{_name(changed)}: not what {run} was trained on: its SHA-256 is another")
    return {part: [[e["path"] for e in source] for source in record[part]] for part in _PARTS}


def _name(paths: list[str]) -> str:
    more = f" (and {number_of(len(paths) - 1, 'other files')})" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"


def load(
    run: Path, out: Path, status: JsonMapping, paths: Mapping[str, list[list[str]]]
) -> Resolved:
    """Return the recipe of a run, with what was decided when it began, for the directory `out`."""
    plain = recipe.load(str(run / RECIPE))
    changes: JsonObject = {"out": str(out), "train.trackers": []}
    data = plain.dump()["data"]
    for part in _PARTS:
        sources = data[part]
        if not sources:  # a change to none would replace `data.valid_fraction`
            continue
        for source, found in zip(sources, paths[part], strict=True):
            source |= {"files": found, "hf": None, "split": None}
        changes[f"data.{part}"] = sources
    if status.get("precision"):
        changes["train.precision"] = status["precision"]
    if fitted := status.get("fitted"):
        changes["train.memory"] = None
        changes["train.tokens_per_batch"] = fitted[0]
        if fitted[1]:
            changes["train.gradient_checkpointing"] = True
    if source := status.get("source"):
        changes["init_from"] = _check_source(run, source)
    return recipe.load(
        str(run / RECIPE), [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    )


def _check_source(run: Path, source: JsonMapping) -> str:
    path = Path(source["path"])
    if not path.exists():
        raise FileError(f"{path}: no such checkpoint any more; {run} starts on it")
    if describe_source(path)["sha256"] != source["sha256"]:
        raise FileError(f"{path}: not the weights on which {run} starts: their SHA-256 is another")
    return str(path)


def keep_times(run: Path, out: Path) -> None:
    """Let the steps of a run with a budget of time take the progress that was measured then.

    Raises:
        FileError: it is not recorded for each step.
    """
    from nlpkit.train import budget

    if files.list_checkpoints(out) or (seconds := _budget(run)) is None:
        return
    ticks = budget.recorded(run / METRICS).ticks
    if sorted(ticks) != [*range(1, len(ticks) + 1)]:
        raise FileError(f"{run / METRICS}: lacks the progress of steps, which a budget needs")
    os.makedirs(out, exist_ok=True)
    rows = [{"step": step, **tick._asdict()} for step, tick in sorted(ticks.items())]
    write_text(out / budget.REPLAY, "".join(json.dumps(row) + "\n" for row in rows))
    write_json(out / "run.json", {"budget_seconds": seconds})


def _budget(run: Path) -> float | None:
    seconds = RunDirectory(run).status().get("budget_seconds")
    return seconds if isinstance(seconds, (int, float)) else None


class Watch(Log):
    """The log of a run that is to equal another: it stops the run with a step of another loss."""

    def __init__(
        self, verbosity: int, stop: StopFlag, losses: Mapping[int, float], steps: int | None
    ):
        """Take the losses of the other run by step; the run stops after `steps`, if given."""
        super().__init__(verbosity)
        self.reached = False
        self._stop, self._losses, self._steps = stop, losses, steps

    def step(
        self,
        step: int,
        total: int | None,
        progress: float,
        loss: float,
        speed: float,
        left: float,
    ) -> None:
        """Show the step; one more than `steps` is taken, so that the last one is evaluated."""
        super().step(step, total, progress, loss, speed, left)
        is_behind = self._steps is not None and step > self._steps
        if is_behind or self._losses.get(step, loss) != loss:
            self.reached = True
            self._stop.signal = self._stop.signal or signal.SIGALRM
