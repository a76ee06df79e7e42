"""The directory of tokenised data, and how a store is put there: completely or not at all.

A store is built in a scratch directory in the same file system, which is then renamed.
"""

import dataclasses
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nlpkit.contracts.reader import TextFile
from nlpkit.data.lines import file_errors
from nlpkit.disk import file_sha256
from nlpkit.errors import FileError

_DEAD_SECONDS = 86400.0  # a scratch directory without changes for so long is that of a killed one


@dataclass(frozen=True)
class Callbacks:
    """How the caller follows a build; all are called from the caller's thread.

    `note` and `warn` take a line for the log, `progress` the bytes of input done and in all,
    `texts` how many a tokenizer is trained on so far, and `should_stop`, called often, may
    raise to end the build, which then leaves nothing behind.
    """

    note: Callable[[str], None] = lambda line: None
    warn: Callable[[str], None] = lambda line: None
    progress: Callable[[int, int], None] = lambda done, total: None
    texts: Callable[[int], None] = lambda done: None
    should_stop: Callable[[], None] = lambda: None


def cache_directory(named: str | None, fallback: Path | None, note: Callable[[str], None]) -> Path:
    """Return a directory that can be written, made if need be.

    The first of: `named`, `$NLPKIT_CACHE`, `$XDG_CACHE_HOME/nlpkit`, `~/.cache/nlpkit`. If that
    one cannot be written, it is `fallback`, with a note. Raise `FileError` if neither can.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = named or os.environ.get("NLPKIT_CACHE")
    first = Path(named).absolute() if named else Path(home, "nlpkit")
    problems = [] if first.is_absolute() else ["the home directory: there is none"]
    for path in (first, fallback):
        if path is None or not path.is_absolute():
            continue
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            problems.append(f"{path}: {_reason(error)}")
            continue
        if problems:
            note(f"data: no cache in {problems[0]}; using {path}")
        return path
    what = "; ".join(problems)
    raise FileError(f"no directory for tokenised data: {what}; set data.cache or $NLPKIT_CACHE")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors (a full disk) into a `FileError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{path}: cannot write tokenised data: {_reason(error)}; "
            f"data.cache or $NLPKIT_CACHE names another place"
        ) from error


def signature(file: TextFile) -> tuple[int, ...]:
    """Return size, time of the last write in ns, and inode; then those of its second file."""
    with file_errors(file.name):
        status = os.stat(file.path)
    own = status.st_size, status.st_mtime_ns, status.st_ino
    return own if file.second is None else own + signature(file.second)


def content_hash(file: TextFile, should_stop: Callable[[], None]) -> str:
    """Return the SHA-256 of the file's bytes; of two that belong together, one of both."""
    if file.second is None:
        with file_errors(file.name):
            return _hash_once(file.path, signature(file), should_stop)
    halves = (dataclasses.replace(file, second=None), file.second)
    found = [f"{content_hash(half, should_stop)} {half.gzip}" for half in halves]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


@lru_cache
def _hash_once(path: str, signature: tuple[int, ...], should_stop: Callable[[], None]) -> str:
    """Return the hash of a file; a run asks several times, and its files may be large."""
    return file_sha256(Path(path), should_stop=should_stop)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a directory in `parent`, which is removed afterwards unless the process is killed."""
    with write_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(".building-*"):
            with suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _DEAD_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(built: Path, path: Path) -> None:
    """Rename a finished directory to `path`; one that another process put there is kept."""
    with write_errors(path):
        try:
            os.rename(built, path)
        except OSError:
            if not path.is_dir():
                raise
