"""Files that are read and written safely: errors name the path, and what is written is synced."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonObject


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that names `path`."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {_cause(error)}") from error
    except Exception as error:
        # safetensors raises its own error type, with the system's message inside
        if type(error).__module__.startswith("safetensors"):
            found = re.search(r"\(os error (\d+)\)", str(error))
            number = int(found[1]) if found else 0
            cause = _cause(OSError(number, os.strerror(number))) if found else error
            raise FileError(f"{path}: cannot be written: {cause}") from error
        raise


def _cause(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no space left on the disk"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a file is where a directory has to be"
    return error.strerror or str(error)


def user_path(name: str | Path) -> Path:
    """Return the path that a user named, with `~` replaced; raise `UsageError` if there is none."""
    path = os.path.expanduser(name)
    if str(path).startswith("~"):
        raise UsageError(f"{name}: no such user; for a directory of this name, write ./{name}")
    return Path(path)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that appears whole or not at all; raise `FileError`.

    A pipe or a device is written directly, and what is open already (`/dev/stdout`) at its place.
    """
    with name_path_in_errors(path):
        names = [n for n in (path.name, "1", "2") if os.path.exists(f"/dev/fd/{n}")]
        held = [int(n) for n in names if path.exists() and path.samefile(f"/dev/fd/{n}")]
        if held or (path.exists() and not path.is_file()):
            to = os.dup(held[0]) if held else path
            with open(to, "w", encoding="utf-8", newline="\n") as file:
                yield file
            return
        target = path.resolve() if path.is_symlink() else path
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(draft, "w", encoding="utf-8", newline="\n") as file:
                yield file
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make sure that a file, or a directory's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def whole_directory(path: Path, draft: Path) -> Iterator[Path]:
    """Make a directory that appears whole or not at all, synced; raise `FileError`.

    Until the end it is called `draft`, a path beside it; one that a killed process left is removed.
    """
    with name_path_in_errors(path):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            yield draft
            for each in (*draft.rglob("*"), draft):
                sync(each)
            draft.rename(path)
            sync(path.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all. No other process writes it at the same time."""
    draft = path.with_name(f".{path.name}")
    with name_path_in_errors(path):
        # A path that is not UTF-8 has surrogates, whose escapes here are those of JSON.
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        sync(draft)
        draft.replace(path)
        sync(path.parent)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> JsonObject:
    """Return the object that a JSON file holds; raise `FileError` if it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: holds {type(content).__name__}, not a JSON object")
    return content


def file_sha256(*paths: Path, should_stop: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file, or of several files one after the other, as hex.

    `should_stop` is called often; it raises an exception to end the reading.
    """
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                should_stop()
                digest.update(block)
    return digest.hexdigest()
