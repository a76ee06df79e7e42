"""Lines of a file as bytes, plain or gzip; only `\\n` ends a line.

Also where a big file may be cut, so that several workers can read it at the same time.
"""

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from nlpkit.contracts.reader import TextFile
from nlpkit.errors import DataError, FileError

_UTF8_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 32 << 20  # bytes; a text takes up to fifty times as much memory
_SHOWN = 3  # names in a message
_BY_LINE = ("text", "paragraphs", "sentences", "jsonl", "tsv")  # formats that can be cut
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def shown(names: Sequence[str]) -> str:
    """Return up to three names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Turn the operating system's errors into a `FileError` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileError(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{name}: is a directory, not a file; name its files: {name}/*") from error
    except OSError as error:
        raise FileError(f"{name}: cannot be read: {error.strerror or error}") from error


def open_bytes(file: TextFile) -> IO[bytes]:
    """Return the file's bytes, decompressed."""
    with file_errors(file.name):
        if file.gzip:
            return cast(IO[bytes], gzip.open(file.path, "rb"))
        return open(file.path, "rb", buffering=1 << 20)


def lines(file: TextFile, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the lines that begin in bytes [start, stop), without their `\\n` or `\\r\\n`.

    `start` must be 0 or the beginning of a line. A byte order mark at the beginning of the file is
    dropped. Raise `DataError` for a damaged gzip file, for UTF-16 and for a line of more than
    `LONGEST_LINE`, `FileError` when unreadable.
    """
    left = sys.maxsize if stop is None else stop - start
    count = 0
    with open_bytes(file) as stream, file_errors(file.name):
        try:
            if start:
                stream.seek(start)
            while raw := stream.readline(LONGEST_LINE + 1):
                if len(raw) > LONGEST_LINE:
                    raise DataError(
                        f"{file.name}:{count + 1}: a line of more than {LONGEST_LINE >> 20} MB; "
                        "each is held in memory as a whole, so divide it (text: fold -s -w 1000000)"
                    )
                left -= len(raw)
                if count == 0 and start == 0:
                    raw = _without_mark(raw, file.name)
                count += 1
                if raw.endswith(b"\n"):
                    raw = raw[: -2 if raw.endswith(b"\r\n") else -1]
                yield raw
                if left <= 0:
                    return
        except EOFError as error:
            message = f"{file.name}: the gzip file is cut short, after line {count}"
            raise DataError(message) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            message = f"{file.name}: the gzip file is corrupt, after line {count}: {error}"
            raise DataError(message) from error


def _without_mark(raw: bytes, name: str) -> bytes:
    if raw.startswith(_UTF16_MARKS):
        raise DataError(
            f"{name}:1: UTF-16 or UTF-32 text (it begins with a byte order mark); "
            f"UTF-8 is needed: iconv -f UTF-16 -t UTF-8"
        )
    return raw.removeprefix(_UTF8_MARK)


def cuts(file: TextFile, size: int) -> Iterator[tuple[int, int | None]]:
    """Yield byte ranges of about `size` bytes that end where a row ends, in order.

    A gzip file, one to which a second belongs, and one whose rows are no lines is one range
    (0, None). Documents between empty lines are cut there only.
    """
    with file_errors(file.name):
        total = Path(file.path).stat().st_size
    if file.gzip or file.second is not None or file.format not in _BY_LINE or total <= size:
        yield 0, None
        return
    start = 0
    with open_bytes(file) as stream:
        while start < total:
            stop = min(start + size, total)
            if stop < total:
                # One byte back, so that a target that is a line's beginning stays one.
                stream.seek(stop - 1)
                stream.readline()
                if file.format in ("paragraphs", "sentences"):
                    while stream.readline() not in (b"\n", b"\r\n", b""):
                        pass
                stop = stream.tell()
            yield start, stop
            start = stop
