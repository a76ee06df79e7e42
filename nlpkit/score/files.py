"""Lines of text files for scores: `-` is stdin; gzip is unpacked; BOM and CRLF are dropped.

Only `\\n` ends a line (other separators occur inside sentences). Errors name file and line.
"""

import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader, StringIO
from typing import IO, cast

from nlpkit.errors import DataError, FileError, UsageError

_GZIP = b"\x1f\x8b"
_MARK = "\ufeff"


def display_name(path: str) -> str:
    """Return the name of the file in messages."""
    return "stdin" if path == "-" else path


def read_lines(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines without their ends; a byte order mark at the beginning is dropped.

    Raise `FileError` if the file is missing or unreadable, `DataError` with the line if it is not
    text in `encoding` or its gzip data is damaged.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, line in enumerate(_decode(stream, encoding), 1):
                if number == 1:
                    line = line.removeprefix(_MARK)
                if line.endswith("\n"):
                    line = line[: -2 if line.endswith("\r\n") else -1]
                yield line
    except UnicodeDecodeError as error:
        where = f"{display_name(path)}:{number + 1}"
        raise DataError(f"{where}: not {encoding} text: {error.reason}") from error
    except FileNotFoundError as error:
        raise FileError(f"{display_name(path)}: no such file") from error
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's own errors have none
            raise FileError(f"{display_name(path)}: cannot be read: {error.strerror}") from error
        where = f"{display_name(path)}:{number + 1}"
        raise DataError(f"{where}: damaged gzip data: {error}") from error


def _decode(stream: IO[bytes], encoding: str) -> Iterator[str]:
    """Return the lines with their ends; raise `UsageError` for an unknown encoding."""
    try:
        is_byte = "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise UsageError(
            f"no encoding {encoding!r}; known are Python's, such as gb18030"
        ) from error
    if is_byte:
        return (raw.decode(encoding) for raw in stream)
    return _decode_whole(stream.read(), encoding)  # such as utf-16


def _decode_whole(raw: bytes, encoding: str) -> Iterator[str]:
    """Yield the lines; those before one that is no text come first, so that they are counted."""
    wrong: UnicodeDecodeError | None = None
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        wrong, text = error, raw[: error.start].decode(encoding)
        text = text[: text.rfind("\n") + 1]
    yield from StringIO(text, newline="\n")
    if wrong is not None:
        raise wrong


def _open(path: str) -> IO[bytes]:
    """Return the file's bytes, decompressed if they begin as gzip's do."""
    # A second file object for stdin: it is closed after reading, but stdin stays open.
    where: str | int = path
    if path == "-":
        where = 0 if sys.stdin is None else sys.stdin.fileno()
    stream = cast(BufferedReader, open(where, "rb", buffering=1 << 18, closefd=path != "-"))  # noqa: SIM115
    if stream.peek(2)[:2] != _GZIP:
        return stream
    import gzip

    return cast(IO[bytes], gzip.open(stream, "rb"))
