"""The directory of tokenised data, and how a store is put there: completely or not at all.

A store is built in a scratch directory in the same file system, which is then renamed. The process
that builds it holds a lock on the scratch directory, so the next build finds and removes those
that a killed process left behind.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nlpkit.contracts.reader import TextFile
from nlpkit.data.lines import file_errors
from nlpkit.disk import file_sha256
from nlpkit.errors import FileError

try:
    import fcntl
except ImportError:  # Windows: scratch directories of killed processes stay.
    fcntl = None  # type: ignore[assignment]

# A hash is remembered only for a big file that was not written within the last two seconds: a
# second write within the resolution of the clock could leave size and time unchanged.
_REMEMBERED_BYTES = 1 << 24
_GRAIN_NS = 2 * 10**9
_LOCK = "lock"


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
    first = _choose_directory(named)
    problems = []
    for path in (first, fallback):
        if path is None:
            continue
        try:
            _try_to_write(path)
        except OSError as error:
            problems.append(f"{path}: {_reason(error)}")
            continue
        if path is not first:
            note(f"data: no cache in {problems[0] if problems else 'a home'}; using {path}")
        return path
    what = "; ".join(problems) or "no home directory"
    raise FileError(f"no directory for tokenised data: {what}; set data.cache or $NLPKIT_CACHE")


def _choose_directory(named: str | None) -> Path | None:
    if named is not None:
        return Path(named).absolute()
    if own := os.environ.get("NLPKIT_CACHE"):
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "nlpkit"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "nlpkit" if os.path.isabs(home) else None


def _try_to_write(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # A full disk often still takes an empty file.
    with tempfile.TemporaryFile(dir=path) as probe:
        probe.write(bytes(4096))
        probe.flush()
        os.fsync(probe.fileno())


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


def content_hash(file: TextFile, memory: Path, should_stop: Callable[[], None]) -> str:
    """Return the SHA-256 of the file's bytes, remembered in `memory` for big unchanged files.

    That of two files that belong together is a hash of both and of how they are compressed.
    """
    if file.second is not None:
        halves = (dataclasses.replace(file, second=None), file.second)
        found = [f"{content_hash(half, memory, should_stop)} {half.gzip}" for half in halves]
        return hashlib.sha256("\n".join(found).encode()).hexdigest()
    now = signature(file)
    note = memory / f"{hashlib.sha256(os.fsencode(file.path)).hexdigest()[:32]}.json"
    if now[0] >= _REMEMBERED_BYTES:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(note.read_text())
            if kept["signature"] == list(now) and len(kept["sha256"]) == 64:
                return kept["sha256"]
    with file_errors(file.name):
        sha256 = file_sha256(Path(file.path), should_stop=should_stop)
    unchanged = time.time_ns() - now[1] > _GRAIN_NS and signature(file) == now
    if now[0] >= _REMEMBERED_BYTES and unchanged:
        # If the note cannot be written, the file is read again next time.
        with contextlib.suppress(OSError):
            memory.mkdir(parents=True, exist_ok=True)
            fresh = note.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps({"signature": now, "sha256": sha256}))
            os.replace(fresh, note)
    return sha256


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a directory in `parent`, which is removed afterwards unless the process is killed."""
    with write_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        path = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    lock = None
    try:
        with write_errors(path):
            # Locked before it has its name: between the two, `_sweep` would take it for a dead one.
            named = path / f".{_LOCK}"
            lock = open(named, "wb")  # noqa: SIM115 - open until the directory is removed
            _lock(lock.fileno())
            named.rename(path / _LOCK)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            lock.close()


def _lock(handle: int) -> bool:
    """Return whether this process has the lock now (False on systems without locks)."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Remove scratch directories of processes that have ended."""
    for path in parent.glob(".building-*"):
        # A directory without a lock file may be new.
        with contextlib.suppress(OSError), open(path / _LOCK, "rb") as lock:
            if _lock(lock.fileno()):
                shutil.rmtree(path, ignore_errors=True)


def publish(built: Path, path: Path, is_sound: Callable[[], bool]) -> None:
    """Rename a finished directory to `path`; a valid one that is already there is kept."""
    with write_errors(path):
        for file in built.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        for _ in range(3):
            try:
                os.rename(built, path)
                return
            except OSError:
                if not path.exists():
                    raise
            if is_sound():
                return
            # Move it into the scratch directory, which is removed; another process may be faster.
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, Path(tempfile.mkdtemp(dir=built.parent)) / "damaged")
        raise FileExistsError(None, "another process keeps putting a damaged store there")
