"""An index in a directory: `index.json` names the folder of its arrays, which are memory-mapped.

`index.json` also holds what the index depends on: the hash of the documents, the tokenizer, and
so on. A new index is written to another folder than the old one, and `index.json` is replaced last.
Therefore a reader always sees a complete index, old or new, even if the writer was stopped.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.errors import FileError, UsageError
from nlpkit.score.search.inverted_index import Index

_LAYOUT = 1
_HEAD = "index.json"
_ARRAYS = ("starts", "documents", "counts", "lengths")
_LISTS = ("ids", "terms")

Settings = dict[str, Any]


def fingerprint(path: str) -> str:
    """Return the hash of a file's bytes; raise `FileError` if it cannot be read."""
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except FileNotFoundError as error:
        raise FileError(f"{path}: no such file") from error
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def read_settings(directory: Path) -> Settings | None:
    """Return the settings of the index in a directory, None if there is no index of this layout.

    Raise `UsageError` if the directory has other files, or is not a directory.
    """
    head = _head(directory)
    if head is None:
        try:
            is_free = not directory.exists() or not any(directory.iterdir())
        except OSError as error:
            raise UsageError(f"--index: {directory} is no directory that can be read") from error
        if not is_free:
            raise UsageError(f"--index: {directory} is no index, and not empty")
        return None
    return head["settings"] if head.get("layout") == _LAYOUT else None


def load(directory: Path) -> tuple[Index, Settings]:
    """Return the memory-mapped index and its settings.

    Raise `FileError` if there is no index, or if its files are missing or inconsistent.
    """
    head = _head(directory)
    if head is None:
        raise FileError(f"{directory}: holds no index ({_HEAD} is missing)")
    if head.get("layout") != _LAYOUT:
        raise FileError(f"{directory}: an index of another version; give its documents again")
    try:
        folder = directory / str(head["folder"])
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        lists = {name: json.loads((folder / f"{name}.json").read_text()) for name in _LISTS}
        terms = {term: number for number, term in enumerate(lists["terms"])}
        index = Index(lists["ids"], terms, **arrays)
        _check(index)
        # Indexes of earlier versions have no hashes.
        for name, expected in head.get("hashes", {}).items():
            if fingerprint(str(folder / name)) != expected:
                raise ValueError(f"{name} has changed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and _head(directory) != head:
            return load(directory)  # another process has replaced the index
        raise FileError(f"{directory}: a damaged index ({error}); remove it") from error
    return index, head["settings"]


def _check(index: Index) -> None:
    """Raise `ValueError` if the arrays are inconsistent."""
    sizes = len(index.starts) == len(index.terms) + 1 and len(index.lengths) == len(index.ids)
    sizes = sizes and len(index.documents) == len(index.counts) == int(index.starts[-1])
    if not sizes or bool((np.diff(index.starts) < 0).any()):
        raise ValueError("its arrays differ in length")
    documents = index.documents
    if len(documents) and not 0 <= documents.min() <= documents.max() < len(index.ids):
        raise ValueError("it has postings of unknown documents")


def _head(directory: Path) -> dict[str, Any] | None:
    try:
        head = json.loads((directory / _HEAD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileError(f"{directory / _HEAD}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{directory}: a damaged index ({_HEAD}); remove it") from error
    if not isinstance(head, dict) or not isinstance(head.get("settings"), dict):
        raise FileError(f"{directory}: {_HEAD} does not describe an index")
    return head


def save(index: Index, settings: Settings, directory: Path) -> None:
    """Write the index, replacing the old one; raise `FileError` if it fails."""
    folder = directory / f"data-{os.urandom(6).hex()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            _replace(index, settings, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise FileError(f"{directory}: cannot be written: {error.strerror}") from error


def _replace(index: Index, settings: Settings, folder: Path) -> None:
    folder.mkdir()
    arrays = (index.starts, index.documents, index.counts, index.lengths)
    for name, array in zip(_ARRAYS, arrays, strict=True):
        with open(folder / f"{name}.npy", "xb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    for name, values in (("ids", index.ids), ("terms", [*index.terms])):
        _write(folder / f"{name}.json", values)
    hashes = {file.name: fingerprint(str(file)) for file in sorted(folder.iterdir())}
    head = {"layout": _LAYOUT, "folder": folder.name, "settings": settings, "hashes": hashes}
    _write(folder / _HEAD, head)
    os.replace(folder / _HEAD, folder.parent / _HEAD)
    # Remove the old index, and files of killed writers.
    for old in folder.parent.glob("data-*"):
        if old.name != folder.name:
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory, so that one process at a time writes an index there."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a directory; the index is then written without a
        # lock.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(path: Path, value: object) -> None:
    with open(path, "x", encoding="ascii") as file:
        file.write(json.dumps(value))
        file.flush()
        os.fsync(file.fileno())


def versions(tokenize: str) -> dict[str, str]:
    """Return the versions on which the splitting into words depends."""
    import unicodedata

    found = {"unicode": unicodedata.unidata_version}
    if tokenize == "zh":
        from importlib.metadata import version

        found["rjieba"] = version("rjieba")
    return found
