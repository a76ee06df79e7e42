"""Lines of a file as bytes, plain or gzip; only `\\n` ends a line; what is wrong with a line.

Also where a big file may be cut, so that several workers can read it at the same time.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from nlpkit.contracts.reader import RowError, TextFile
from nlpkit.data import formats
from nlpkit.errors import DataError, FileError
from nlpkit.registry import suggest

_UTF8_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 32 << 20  # bytes; a text takes up to fifty times as much memory
_SHOWN = 3  # names in a message
_SHOWN_KEYS = 10
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
                    raw = _strip_mark(raw, file.name)
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


def _strip_mark(raw: bytes, name: str) -> bytes:
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
    by_line = formats.documents(file.format) == "lines" and file.second is None
    if file.gzip or not by_line or total <= size:
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


def wrong_character(text: str) -> tuple[int, str] | None:
    """Return where the first character is that no text has, and what it is."""
    if "\0" in text:
        return text.index("\0"), "NUL (U+0000)"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start, f"U+{ord(text[error.start]):04X}, half of a surrogate pair"
    return None


def decode(raw: bytes) -> str:
    """Return a row as text; raise `RowError` if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        begin = raw.rfind(b"\n", 0, error.start) + 1
        end = raw.find(b"\n", begin)
        line = raw[begin:] if end < 0 else raw[begin:end]
        hint = ""
        if line.startswith(b"\x1f\x8b"):
            hint = "; it looks like a gzip file, which must be named .gz"
        elif _looks_like_gb18030(line):
            hint = "; the line looks like GB18030"
        what = f"byte {error.start - begin + 1} is not UTF-8 (0x{raw[error.start]:02x}){hint}"
        raise RowError(what, 1 + raw.count(b"\n", 0, begin)) from error


def _looks_like_gb18030(line: bytes) -> bool:
    try:
        text = line.decode("gb18030")
    except UnicodeDecodeError:
        return False
    # Latin-1 often decodes, too, but has about one high byte for each character; Chinese has two.
    wide = sum(ord(character) > 0x7F for character in text)
    return sum(byte > 0x7F for byte in line) >= 1.5 * wide


def json_object(line: str, example: str, strict: bool = True) -> dict[str, Any]:
    """Return the object in a line of jsonl; with `strict`, no key may be there twice.

    Raises:
        RowError: broken JSON, or no object; `example` is a key that it should have.
    """
    try:
        row = json.loads(line, object_pairs_hook=_refuse_twins if strict else None)
    except json.JSONDecodeError as error:
        hint = ""
        if line.strip() in ("{", "[", "[{"):
            hint = "; one object a line is needed; data.format: json reads one value"
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise RowError(f"broken JSON at column {error.colno}: {what}{hint}") from error
    except RecursionError as error:
        raise RowError("broken JSON: nested too deeply") from error
    except ValueError as error:
        raise RowError(f"broken JSON: {error}") from error
    if not isinstance(row, dict):
        hint = "; data.format: json reads an array of rows" if isinstance(row, list) else ""
        raise RowError(f'{kind_of(row)}, not an object like {{"{example}": "..."}}{hint}')
    return row


def _refuse_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RowError(f'"{next(key for key in keys if keys.count(key) > 1)}" is there twice')
    return row


def no_such(key: str, known: list[str]) -> str:
    """Return that there is no `key`, the nearest known one, and what there is."""
    if not known:
        return f'no "{key}"; the object is empty'
    more = ", ..." if len(known) > _SHOWN_KEYS else ""
    return f'no "{key}"{suggest(key, known)}; it has: {", ".join(known[:_SHOWN_KEYS])}{more}'


def kind_of(value: object) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"a number ({value})" if abs(value) < 1e300 or value != value else "a number"
    if isinstance(value, np.ndarray):
        return f"an array of {' x '.join(map(str, value.shape))} values"
    if isinstance(value, dict):
        return "an object"
    names: dict[type, str] = {list: "an array", str: "a string"}
    return names.get(type(value), f"a value of type {type(value).__name__}")
