"""Checkpoints that appear whole or not at all, and the run directory that holds them.

A checkpoint is written into a hidden directory beside its place, every file synced, then a manifest
with sizes and hashes, then renamed. The manifest is what makes a directory a checkpoint. Older ones
are removed afterwards, by step, never the best and never the only good one.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from nlpkit.disk import file_sha256, name_path_in_errors, sync, write_json
from nlpkit.errors import FileError

MANIFEST = "manifest.json"
TRAINING = "training.json"  # step, position in the data, ... : what a resumed run needs to know
# TRAINING anew, in a checkpoint whose step was evaluated only after it was saved.
EVALUATED = "training.evaluated.json"
OPTIMIZER_STATE = "optimizer.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int


def _directory(run: Path) -> Path:
    return run / "checkpoints"


def checkpoint_path(run: Path, step: int) -> Path:
    """Return where the checkpoint of `step` lies, or would lie."""
    return _directory(run) / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """Return the run's checkpoints, newest step first; unfinished ones do not count."""
    paths = [p for p in _directory(run).glob("step-*") if (p / MANIFEST).is_file()]
    steps = [Checkpoint(p, int(p.name[5:])) for p in paths if p.name[5:].isdecimal()]
    return sorted(steps, key=lambda c: -c.step)


def find_corruption(path: Path) -> str | None:
    """Return what is wrong with the files of a checkpoint, or None when every hash is right."""
    if not (path / MANIFEST).is_file():  # nor a pipe, whose end would never come
        return f"{MANIFEST} is missing"
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name in (TRAINING, OPTIMIZER_STATE):
            if name not in files:
                return f"{MANIFEST} does not name {name}"
        for name, entry in files.items():
            target = path / name
            if not is_inside(name):
                return f"{MANIFEST} names {name!r}, which lies elsewhere"
            if not target.is_file():
                return f"{name} is missing"
            if target.stat().st_size != entry["bytes"]:
                return f"{name} has {target.stat().st_size} bytes, not {entry['bytes']}"
            if file_sha256(target) != entry["sha256"]:
                return f"{name} has changed since it was written (its hash differs)"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST}: {error}"
    return None


def is_inside(name: str) -> bool:
    """Return whether a file's name in a manifest leads nowhere but into the checkpoint."""
    parts = PurePath(name).parts
    return PurePath(*parts).as_posix() == name and ".." not in parts and name[:1] not in "/."


def newest_valid(run: Path, info: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint; report through `info` what is wrong with newer ones.

    These are put aside as `damaged-step-…`, so that the run can save those steps again.

    Raises:
        FileError: there are checkpoints and all are damaged.
    """
    checkpoints = list_checkpoints(run)
    bad: list[Path] = []
    for checkpoint in checkpoints:
        problem = find_corruption(checkpoint.path)
        if problem is None:
            for path in bad:
                with name_path_in_errors(path):
                    path.rename(path.with_name(f"damaged-{path.name}"))
            return checkpoint
        info(f"{checkpoint.path} is damaged ({problem}); going back to the one before it")
        bad.append(checkpoint.path)
    if checkpoints:
        raise FileError(
            f"{_directory(run)}: all {len(checkpoints)} checkpoints are damaged; "
            "restore one, or start afresh with --resume never and another --out"
        )
    return None


def save(run: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Make checkpoint `step` from the files that `write(directory)` makes, and point to it.

    Raises:
        FileError: no space or no permission; whatever was there before is still there.
    """
    target = checkpoint_path(run, step)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    with name_path_in_errors(target):
        remove_drafts(run)
        draft.mkdir(parents=True)
        try:
            write(draft)
            files = {}
            for path in sorted(p for p in draft.rglob("*") if p.is_file()):
                sync(path)
                name = path.relative_to(draft).as_posix()
                files[name] = _entry(path)
            (draft / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1))
            sync(draft / MANIFEST)
            for path in (*filter(Path.is_dir, draft.rglob("*")), draft):
                sync(path)
            draft.rename(target)
            sync(target.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        set_pointer(run, "latest", target)
    return target


def amend(path: Path, name: str, text: str) -> None:
    """Add a file to a checkpoint: it is part of it from the renaming of the manifest on."""
    with name_path_in_errors(path):
        (path / name).write_text(text, encoding="utf-8")
        sync(path / name)
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"][name] = _entry(path / name)
    write_json(path / MANIFEST, manifest)


def training_file(path: Path) -> Path:
    """Return the file that says what a run which goes on from this checkpoint needs to know."""
    named = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    return path / (EVALUATED if EVALUATED in named else TRAINING)


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    best = read_pointer(run, "best")
    for checkpoint in list_checkpoints(run)[keep:]:
        if checkpoint.path.name == (best.name if best else None):
            continue
        if checkpoint.path.is_symlink():  # kept elsewhere by the user, whose it is
            with name_path_in_errors(checkpoint.path):
                checkpoint.path.unlink()
        else:
            # Without its manifest it is no checkpoint: a kill in the middle leaves no half one.
            with name_path_in_errors(checkpoint.path):
                (checkpoint.path / MANIFEST).unlink()
            shutil.rmtree(checkpoint.path, ignore_errors=True)


def remove_drafts(run: Path) -> None:
    """Remove what a killed save or prune left; only the owner of the run directory may."""
    for path in _directory(run).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in _directory(run).glob("step-*"):
        if path.name[5:].isdecimal() and not (path / MANIFEST).exists():
            shutil.rmtree(path, ignore_errors=True)


def set_pointer(run: Path, name: str, target: Path) -> None:
    """Make the pointer `checkpoints/NAME` lead to `target`, in one rename."""
    link, draft = _directory(run) / name, _directory(run) / f".{name}.{os.getpid()}"
    with name_path_in_errors(link):
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        draft.replace(link)
        sync(link.parent)


def read_pointer(run: Path, name: str) -> Path | None:
    """Return the checkpoint that a pointer leads to, or None."""
    link = _directory(run) / name
    return link.resolve() if link.is_dir() else None


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
