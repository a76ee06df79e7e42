"""Writes and finds the checkpoints of a run. Writing is atomic: there is no incomplete checkpoint.

All files and then a manifest with sizes and hashes are written to a hidden directory in
`checkpoints/`, which is synced and then renamed. After that, older checkpoints are removed, except
the best one. Each is renamed to a hidden name first, so that a removal that was killed leaves no
partial checkpoint. A directory without a manifest is a damaged checkpoint, and is kept.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nlpkit.disk import file_sha256, name_path_in_errors, sync, whole_directory
from nlpkit.errors import FileError
from nlpkit.json_types import JsonObject

MANIFEST = "manifest.json"
TRAINING = "training.json"  # state of the run: step, position in the data, ...
# Replaces TRAINING in a checkpoint whose step was evaluated after it was saved.
EVALUATED = "training.evaluated.json"
OPTIMIZER_STATE = "optimizer.safetensors"
# The weights that are trained, if the model of the checkpoint is their average.
TRAINED = "trained.safetensors"
STABLE = "stable"  # the link to the checkpoint from before the decay of the learning rate


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int


def directory(run: Path) -> Path:
    """Return the directory of the checkpoints of a run."""
    return run / "checkpoints"


def checkpoint_path(run: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`, whether it exists or not."""
    return directory(run) / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """Return the run's complete checkpoints, newest step first."""
    return [c for c in list_directories(run) if (c.path / MANIFEST).is_file()]


def list_directories(run: Path) -> list[Checkpoint]:
    """Return all directories named like checkpoints, complete or not, newest step first."""
    found = [(p, step) for p in directory(run).glob("*") if (step := step_of(p)) is not None]
    return sorted((Checkpoint(p, step) for p, step in found), key=lambda c: -c.step)


def step_of(path: Path) -> int | None:
    """Return the step that the name of a checkpoint's directory tells, or None for other names."""
    name, _, number = path.name.partition("-")
    return int(number) if name == "step" and number.isdecimal() else None


def save(run: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Save the files that `write(directory)` writes as checkpoint `step`; set the link `latest`.

    Raises:
        FileError: no space or no permission; older checkpoints are unchanged.
    """
    target = checkpoint_path(run, step)
    remove_drafts(run)
    with whole_directory(target, target.with_name(f".{target.name}")) as draft:
        write(draft)
        paths = sorted(path for path in draft.rglob("*") if path.is_file())
        files = {path.relative_to(draft).as_posix(): describe(path) for path in paths}
        (draft / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1))
    set_pointer(run, "latest", target)
    return target


def training_file(path: Path) -> Path:
    """Return the file with the state of the run at this checkpoint."""
    names = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    return path / (EVALUATED if EVALUATED in names else TRAINING)


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and those of the links `best` and `stable`."""
    linked = {path.name for name in ("best", STABLE) if (path := read_pointer(run, name))}
    for checkpoint in list_checkpoints(run)[keep:]:
        if checkpoint.path.name in linked:
            continue
        removed = checkpoint.path.with_name(f".{checkpoint.path.name}")
        with name_path_in_errors(checkpoint.path):
            if checkpoint.path.is_symlink():  # the user moved the checkpoint: the link alone goes
                checkpoint.path.unlink()
            else:
                checkpoint.path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def remove_drafts(run: Path) -> None:
    """Remove the files of a killed `save` or `prune`. The caller must hold the lock of the run."""
    for path in directory(run).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def set_pointer(run: Path, name: str, target: Path) -> None:
    """Set the link `checkpoints/NAME` to `target`, in one rename."""
    link, draft = directory(run) / name, directory(run) / f".{name}"
    with name_path_in_errors(link):
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        draft.replace(link)
        sync(link.parent)


def read_pointer(run: Path, name: str) -> Path | None:
    """Return the target of the link `checkpoints/NAME`, or None."""
    link = directory(run) / name
    return link.resolve() if link.is_dir() else None


def choose_checkpoint(run: Path) -> tuple[Path, str] | None:
    """Return the checkpoint to use for a run, and its name: `best` or `latest`.

    It is the latest if no evaluation chose a best one. None if `run` has no checkpoint.
    """
    for name in ("best", "latest"):
        if path := read_pointer(run, name):
            return path, name
    return None


def find_named(path: Path) -> Path | None:
    """Return the checkpoint that RUN/best, RUN/latest or RUN/stable names, None for other paths.

    Raises:
        FileError: the run has no checkpoint of this name.
    """
    known = ("best", "latest", STABLE)
    if path.exists() or path.name not in known or not directory(path.parent).is_dir():
        return None
    if found := read_pointer(path.parent, path.name):
        return found
    there = [str(path.with_name(name)) for name in known if read_pointer(path.parent, name)]
    remedy = f"; there is {', '.join(there)}" if there else ""
    raise FileError(f"{path}: the run has no {path.name} checkpoint{remedy}")


def describe(path: Path) -> JsonObject:
    """Return the entry of a file in a manifest."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
