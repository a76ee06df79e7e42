"""Sends the lines of metrics.jsonl to TensorBoard, Weights & Biases, MLflow and other trackers.

accelerate has a class for each tracker. An error in a tracker does not end the run: there is one
warning, and the tracker is not used any more. Importable without torch.
"""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nlpkit.errors import Unsupported, not_installed
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

# The trackers of accelerate; each has the name of the package that it needs.
Tracker = Literal[
    "aim",
    "clearml",
    "comet_ml",
    "dvclive",
    "mlflow",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
]
_TENSORBOARD = "tensorboard"  # also a directory in the run directory
Settings = Mapping[str, bool | int | float | str | None]


def check_installed(setting: str, packages: Sequence[str | None]) -> None:
    """Raise `Unsupported` if a package that a setting needs is not installed; imports none."""
    for package in filter(None, packages):
        spec = importlib.util.find_spec(package.replace("-", "_"))
        # A spec without an origin is a directory of this name, such as wandb makes for its files.
        if spec is None or spec.origin is None:
            raise Unsupported(f"{setting}: {not_installed(package)}")


def flatten(record: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl as `train/loss`, `held_out/losses/NAME`, ..."""
    values: dict[str, float] = {}

    def add(name: str, value: object) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif isinstance(value, int | float):
            # Names of scores (`f1:average=macro`) have characters that MLflow refuses.
            values[re.sub(r"[^\w./ -]", "_", name)] = value

    if "held_out" in record:
        add("held_out", record["held_out"])
    else:
        add("train", {key: value for key, value in record.items() if key != "step"})
    return values


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that trackers get at its start.

    `step` is the step of the checkpoint that is resumed, or 0. A resumed run keeps its `id`.
    """

    project: str
    directory: Path
    id: str
    step: int
    settings: Settings


class Trackers:
    """The trackers of a run, on rank 0; its methods never raise."""

    def __init__(self, names: Sequence[str], run: TrackedRun, warn: Callable[[str], None]):
        self._warn = warn
        self._active: dict[str, GeneralTracker] = {}
        for name in dict.fromkeys(names):
            self._try(name, partial(self._start, name, run))

    def log(self, record: Mapping[str, object]) -> None:
        values, step = flatten(record), record["step"]
        for name, tracker in list(self._active.items()):
            self._try(name, partial(tracker.log, values, step=step))

    def finish(self) -> None:
        for name, tracker in list(self._active.items()):
            self._try(name, tracker.finish)
        self._active = {}

    def _start(self, name: str, run: TrackedRun) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        tracker_class = LOGGER_TYPE_TO_CLASS[name]
        appends = name == _TENSORBOARD and (run.directory / _TENSORBOARD).is_dir()
        directory = [str(run.directory)] if tracker_class.requires_logging_directory else []
        project = _TENSORBOARD if name == _TENSORBOARD else run.project
        tracker = tracker_class(project, *directory, **_options(name, run))
        tracker.start()
        if not appends:  # a resumed run has sent its settings before
            tracker.store_init_configuration(dict(run.settings))
        self._active[name] = tracker

    def _try(self, name: str, act: Callable[[], None]) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result of the command
                act()
        # A tracker may raise anything, for example network errors.
        except Exception as error:
            self._active.pop(name, None)
            what = str(error).strip().partition("\n")[0] or type(error).__name__
            self._warn(f"train.trackers: {name} failed and is not used any more: {what}")


def _options(name: str, run: TrackedRun) -> JsonObject:
    """Return a tracker's options to resume a run and to save files in the run directory."""
    if name == _TENSORBOARD:
        return {"purge_step": run.step + 1}  # hides lines of steps after the checkpoint
    if name == "wandb":
        named = {"name": run.directory.name, "id": run.id, "resume": "allow"}
        return {"dir": str(run.directory), **named}
    if name == "dvclive":
        return {"dir": str(run.directory / name), "resume": run.step > 0}
    return {}
