"""Checks checkpoints by the sizes and hashes in their manifests; finds the newest valid one."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from nlpkit.checkpoints.files import (
    EVALUATED,
    MANIFEST,
    OPTIMIZER_STATE,
    TRAINED,
    TRAINING,
    Checkpoint,
    describe,
    directory,
    list_directories,
    step_of,
)
from nlpkit.disk import file_sha256, name_path_in_errors, sync, write_json
from nlpkit.errors import FileError
from nlpkit.plural import all_of, number_of

# What only a resumed run reads; it may be deleted from a checkpoint.
RESUME_ONLY = (TRAINING, EVALUATED, OPTIMIZER_STATE, TRAINED)


def hash_weights(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over the files of a model, without those that may be deleted."""
    return file_sha256(*(path for path in paths if path.name not in RESUME_ONLY))


def has_hash(paths: Sequence[Path], sha256: object) -> bool:
    """Return whether the files of a model have a hash.

    In earlier versions, those of `paths` that may be deleted were part of it.
    """
    return sha256 == hash_weights(paths) or sha256 == file_sha256(*paths)


def verify(path: Path) -> None:
    """Raise `FileError` if a file that an opened model needs is not as its manifest says."""
    if (path / MANIFEST).is_file() and (problem := find_corruption(path, resumable=False)):
        raise FileError(f"{path}: {problem}")


def find_corruption(path: Path, resumable: bool = True) -> str | None:
    """Return the first problem of a checkpoint's files, or None if all hashes match.

    Where the run is not `resumable`, its state is not looked at.
    """
    if not (path / MANIFEST).is_file():  # a pipe is no file: reading it would block
        return f"{MANIFEST} is missing"
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files, state = dict(manifest["files"]), (TRAINING, OPTIMIZER_STATE)
        if resumable and (lacking := [name for name in state if name not in files]):
            return f"{MANIFEST} does not name {lacking[0]}"
        if resumable and {step_of(path), step_of(path.resolve())} - {None, manifest["step"]}:
            return f"it is step {manifest['step']} by its {MANIFEST}, copied to this name"
        for name, entry in files.items():
            target = path / name
            if name in RESUME_ONLY and not resumable:
                continue
            if not is_inside(name):
                return f"{MANIFEST} names {name!r}, which is outside the checkpoint"
            if not target.is_file():
                return f"{name} is missing"
            if (size := target.stat().st_size) != entry["bytes"]:
                return f"{name} has {number_of(size, 'bytes')}, not {entry['bytes']}"
            if file_sha256(target) != entry["sha256"]:
                return f"{name} has changed since it was written (its hash differs)"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST}: {error}"
    return None


def is_inside(name: str) -> bool:
    """Return whether a file name in a manifest is a path inside the checkpoint."""
    parts = PurePath(name).parts
    return PurePath(*parts).as_posix() == name and ".." not in parts and name[:1] not in "/."


def find_newest_valid(run: Path, info: Callable[[str], None]) -> Checkpoint:
    """Return the newest valid checkpoint.

    `info` is called for each damaged newer checkpoint, which is renamed to `damaged-step-…`, so
    that the run can save this step again.

    Raises:
        FileError: there is none, or all are damaged.
    """
    checkpoints = list_directories(run)
    problems: list[tuple[Path, str]] = []
    for checkpoint in checkpoints:
        problem = find_corruption(checkpoint.path)
        if problem is None:
            for path, cause in problems:
                info(
                    f"{path} is damaged ({cause}); renamed to {_rename_damaged(path)}; "
                    f"{checkpoint.path.name} is used"
                )
            return checkpoint
        problems.append((checkpoint.path, problem))
    raise FileError(
        f"{directory(run)}: {all_of(len(checkpoints), 'checkpoints are damaged')}: "
        + "; ".join(f"{path.name}: {cause}" for path, cause in problems)
        + "; restore one, or start a new run with another --out"
    )


def _rename_damaged(path: Path) -> str:
    """Rename a damaged checkpoint to `damaged-NAME`; return the new name."""
    name, number = f"damaged-{path.name}", 1
    while os.path.lexists(path.with_name(name)):
        number += 1
        name = f"damaged-{path.name}.{number}"
    with name_path_in_errors(path):
        path.rename(path.with_name(name))
    return name


def amend(path: Path, name: str, text: str) -> None:
    """Add a file to a checkpoint, atomically: the manifest is replaced last."""
    with name_path_in_errors(path):
        (path / name).write_text(text, encoding="utf-8")
        sync(path / name)
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"][name] = describe(path / name)
    write_json(path / MANIFEST, manifest)
