"""What can be read only once, stdin or a pipe: it is copied to where it can be read twice."""

import hashlib
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

_BLOCK = 1 << 20
_WAIT_SECONDS = 60.0


def copy(
    path: Path, name: str, folder: Path, form: str, should_stop: Callable[[], None]
) -> TextFile:
    """Return a copy of stdin (`-`), or of a pipe; `auto` goes by the ending, and else is text.

    Raises:
        FileError: it cannot be read, or the copy cannot be written.
    """
    if name != "-":
        if path.is_char_device() or path.is_block_device():  # such as /dev/zero, without an end
            raise FileError(f"{name}: is a device, not a file; - is stdin")
        with file_errors(name), _open_pipe(path, name, should_stop) as stream:
            return _copy_stream(stream, name, folder, form, should_stop)
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("data: '-' is stdin, but stdin is closed")
    if sys.stdin.isatty():
        raise UsageError("data: '-' is stdin, but stdin is a terminal; pipe a file into it")
    return _copy_stream(sys.stdin.buffer, "stdin", folder, form, should_stop)


def _open_pipe(path: Path, name: str, should_stop: Callable[[], None]) -> BinaryIO:
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


def _copy_stream(
    stream: BinaryIO, name: str, folder: Path, form: str, should_stop: Callable[[], None]
) -> TextFile:
    """Copy `stream` into `folder`, named by its content, so that the same text is kept once."""
    digest, head = hashlib.sha256(), b""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".spool-") as workdir:
            copy = Path(workdir, "copy")
            copy.touch(0o600)
            with copy.open("wb") as out:
                while block := stream.read(_BLOCK):
                    should_stop()
                    head = head or block[:2]
                    digest.update(block)
                    out.write(block)
            is_gzip = head == b"\x1f\x8b"
            final = copy.replace(folder / (digest.hexdigest() + (".gz" if is_gzip else "")))
    except OSError as error:
        message = f"{folder}: cannot keep {name}: {(error.strerror or str(error)).lower()}"
        raise FileError(message) from error
    form = (formats.find_format(name) or "text") if form == "auto" else form
    return TextFile(str(final), name, form, is_gzip)
