"""From the names in a recipe to files: `~`, `$HOME`, globs, the folders searched, and stdin."""

import dataclasses
import glob
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import BinaryIO

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.lines import file_errors
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of

_BLOCK = 1 << 20
_WAIT_SECONDS = 60.0


def expand(name: str) -> str:
    """Return `name` with a leading `~` or `$HOME` replaced; no other variable is looked at."""
    for home in ("$HOME", "${HOME}"):
        if name == home or name.startswith(home + "/"):
            name = "~" + name.removeprefix(home)
    return os.path.expanduser(name)


def roots(name: str, base: Path | None) -> list[Path]:
    """Return the folders in which a relative path is looked for, the first one first.

    The data that come with nlpkit are found from everywhere, by names that begin with `data/`.
    """
    package = Path(__file__).parent.parent
    shipped = package / "_shipped"
    found = [Path.cwd()]
    if base is not None:
        found.append(base.absolute())
    if name.startswith("data/"):
        found.append(shipped if shipped.is_dir() else package.parent)
    return list(dict.fromkeys(found))


def find(pattern: str, base: Path | None, within: str = "") -> list[tuple[Path, str]]:
    """Return the files that a path or glob names: absolute path, and what messages call it.

    The first folder of `roots` with a match wins; matches are sorted. A directory stands for what
    the glob `within` finds in it. Raise `FileError`.
    """
    name = expand(pattern)
    folders = [Path("/")] if os.path.isabs(name) else roots(name, base)
    only_folders = False
    for folder in folders:
        literal = folder / name
        with file_errors(pattern):
            is_folder, is_there = literal.is_dir(), os.path.lexists(literal)
        if is_folder and within:
            return find(f"{glob.escape(str(literal))}/{within}", None)
        if is_folder:
            files = f"{pattern}/{_files_inside(literal)}"
            raise FileError(f"{pattern}: is a directory, not a file; name its files: {files}")
        if is_there:
            hits = [name]
        else:
            every = sorted(glob.glob(name, root_dir=folder, recursive=True))
            hits = [hit for hit in every if not (folder / hit).is_dir()]
            only_folders = only_folders or len(every) > len(hits)
        if hits:
            here = folder in (Path("/"), Path.cwd())
            return [(folder / hit, hit if here else str(folder / hit)) for hit in hits]
    is_glob = glob.has_magic(name)
    what = f"no file matches {pattern!r}" if is_glob else f"no such file: {pattern}"
    if only_folders:
        what += ", only directories do"
    if os.path.isabs(name):
        raise FileError(what)
    raise FileError(f"{what}; looked in {', '.join(map(str, folders))}")


def _files_inside(folder: Path) -> str:
    """Return the glob of a folder's files, such as those of images in a folder for each class."""
    globs = filter(None, map(formats.inside, formats.readers()))
    return next((g for g in globs if next(glob.iglob(g, root_dir=folder), None)), "*")


def text_file(path: Path, name: str, form: str) -> TextFile:
    """Return the file with its format; `auto` goes by the ending, before `.gz`."""
    zipped = path.suffix.lower() == ".gz"
    if form == "auto":
        form = formats.by_ending(path.name)
        if not form:
            suffix = Path(path.name.lower().removesuffix(".gz")).suffix
            raise UsageError(
                f"{name}: the ending {suffix!r} tells no format; set data.format to "
                f"{', '.join(formats.known()[1:])} (known endings: {', '.join(formats.endings())})"
            )
    return TextFile(str(path), name, form, zipped)


def joined(files: list[TextFile]) -> list[TextFile]:
    """Return the files of a source, two that belong together as one; raise `UsageError`."""
    wanted = max((formats.parts(file.format) for file in files), key=len)
    if len(wanted) == 1:
        return files
    if len(files) != len(wanted) or files[0].format != files[1].format:
        named = ", ".join(file.name for file in files)
        raise UsageError(
            f"data: format {files[0].format} takes {number_of(len(wanted), 'files')}, "
            f"{' and '.join(wanted)}, as "
            f"files: [..., ...]; got {named}"
        )
    return [dataclasses.replace(files[0], second=files[1])]


def is_stream(path: Path, name: str) -> bool:
    """Return whether `path` can be read only once (a pipe, a process substitution).

    Raise `FileError` for a device, such as /dev/zero, which may have no end.
    """
    with file_errors(name):
        mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise FileError(f"{name}: is a device, not a file; - is stdin")
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def spool_stdin(folder: Path, form: str, should_stop: Callable[[], None]) -> TextFile:
    """Return a copy of stdin that can be read twice; `auto` is text."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("data: '-' is stdin, but stdin is closed")
    if sys.stdin.isatty():
        raise UsageError("data: '-' is stdin, but stdin is a terminal; pipe a file into it")
    return _spool(sys.stdin.buffer, "stdin", folder, form, should_stop)


def spool(
    path: Path, name: str, folder: Path, form: str, should_stop: Callable[[], None]
) -> TextFile:
    """Return a copy of a pipe such as `/dev/fd/63` that can be read twice; `auto` is text."""
    with file_errors(name), _opened(path, name, should_stop) as stream:
        return _spool(stream, name, folder, form, should_stop)


def _opened(path: Path, name: str, should_stop: Callable[[], None]) -> BinaryIO:
    """Open a pipe, which waits for a program that writes into it; raise `FileError` if none comes.

    A thread waits, so that this one can be stopped.
    """
    opened: Future[BinaryIO] = Future()

    def wait() -> None:
        try:
            opened.set_result(open(path, "rb"))  # noqa: SIM115
        except OSError as error:
            opened.set_exception(error)

    Thread(target=wait, daemon=True).start()
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        with suppress(TimeoutError):
            return opened.result(timeout=0.1)
        should_stop()
        if time.monotonic() > end:
            raise FileError(f"{name}: no program writes into this pipe for {_WAIT_SECONDS:g} s")


def _spool(
    stream: BinaryIO, name: str, folder: Path, form: str, should_stop: Callable[[], None]
) -> TextFile:
    """Copy `stream` into `folder`, named by its content, so that the same text is kept once."""
    digest = hashlib.sha256()
    head = b""
    handle, copy = -1, ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, copy = tempfile.mkstemp(dir=folder, prefix=".spool-")
        with os.fdopen(handle, "wb") as out:
            while block := stream.read(_BLOCK):
                should_stop()
                head = head or block[:2]
                digest.update(block)
                out.write(block)
        final = folder / digest.hexdigest()
        os.replace(copy, final)
    except BaseException as error:
        if copy:
            Path(copy).unlink(missing_ok=True)
        if isinstance(error, OSError):
            message = f"{folder}: cannot keep {name}: {(error.strerror or str(error)).lower()}"
            raise FileError(message) from error
        raise
    form = "text" if form == "auto" else form
    return TextFile(str(final), name, form, head == b"\x1f\x8b")
