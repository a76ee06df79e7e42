"""Lines of a file as bytes, plain or gzip; only `\\n` ends a line; what is wrong with a line.

A `TextFile` may be a range of a file's bytes, which begins and ends where a line does.
"""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BufferedReader
from typing import cast

import numpy as np

from nlpkit.contracts.reader import RowError, TextFile
from nlpkit.errors import DataError, FileError
from nlpkit.plural import number_of
from nlpkit.registry import suggest

_UTF8_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 32 << 20  # bytes; a text takes up to fifty times as much memory
_SHOWN, _SHOWN_KEYS = 3, 10  # names in a message
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def name_first(names: Sequence[str]) -> str:
    """Return up to three names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Turn errors of the operating system and of gzip into one that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileError(f"{name}: no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{name}: is a directory, not a file; name its files: {name}/*") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: the gzip file is damaged: {error}") from error
    except OSError as error:
        raise FileError(f"{name}: cannot be read: {error.strerror or error}") from error


def open_bytes(file: TextFile) -> BufferedReader:
    """Return the file's bytes, decompressed."""
    with file_errors(file.name):
        return cast(BufferedReader, gzip.open(file.path)) if file.gzip else open(file.path, "rb")


def lines(file: TextFile) -> Iterator[bytes]:
    """Yield the lines of a file, or of its range, without their `\\n` or `\\r\\n`.

    A byte order mark at its beginning is dropped. Raise `FileError` when unreadable, `DataError` if
    it is damaged gzip or UTF-16, its lines end with `\r` alone, or one exceeds `LONGEST_LINE`.
    """
    left = sys.maxsize if file.stop is None else file.stop - file.start
    number = 0
    with file_errors(file.name), open_bytes(file) as stream:
        if file.start:  # a pipe has none
            stream.seek(file.start)
        while left > 0 and (raw := stream.readline(LONGEST_LINE + 1)):
            left -= len(raw)
            number += 1
            if number == 1 and file.start == 0:
                is_only = raw[-1:] != b"\n" or (raw[:-2].count(b"\r") > 1 and not stream.peek(1))
                if raw.startswith(_UTF16_MARKS) or (b"\r" in raw.rstrip() and is_only):
                    from nlpkit.data.unreadable import explain_first_line

                    raise explain_first_line(file.name, raw)
                raw = raw.removeprefix(_UTF8_MARK)
            if len(raw) > LONGEST_LINE:
                number += sum(1 for _ in lines(replace(file, start=0, stop=file.start)))
                raise DataError(
                    f"{file.name}:{number}: a line of more than {LONGEST_LINE >> 20} MB; "
                    "each is held in memory as a whole, so divide it (text: fold -s -w 1000000)"
                )
            if raw.endswith(b"\n"):
                raw = raw[: -2 if raw.endswith(b"\r\n") else -1]
            yield raw


def check_characters(text: str, name: str = "the text", by_line: bool = False) -> None:
    """Raise `RowError` for a character that no text has; `by_line`: named by its line, too."""
    if "\0" not in text:
        with suppress(UnicodeEncodeError):
            text.encode()
            return
    wrong = re.search("[\0\ud800-\udfff]", text)
    assert wrong is not None
    code = f"U+{ord(wrong[0]):04X}"
    what = f"NUL ({code})" if wrong[0] == "\0" else f"{code}, half of a surrogate pair"
    before = text[: wrong.start()]
    line = 1 + before.count("\n") if by_line else 1
    column = 1 + len(before.rpartition("\n")[2] if by_line else before)
    raise RowError(f"character {column} of {name} is {what}", line)


def decode(raw: bytes) -> str:
    """Return a row as text; raise `RowError` if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        from nlpkit.data.unreadable import explain_bytes

        raise explain_bytes(raw, error.start) from error


def no_such(key: str, known: list[str]) -> str:
    """Return that there is no `key`, the nearest known one, and what there is."""
    if not known:
        return f'no "{key}"; the object is empty'
    if known == [str(number) for number in range(1, len(known) + 1)]:
        return f"{number_of(len(known), 'columns')}; there is no column {key}"
    known = [json.dumps(name, ensure_ascii=False)[1:-1] for name in known]  # without line breaks
    more = ", ..." if len(known) > _SHOWN_KEYS else ""
    return f'no "{key}"{suggest(key, known)}; it has: {", ".join(known[:_SHOWN_KEYS])}{more}'


def kind_of(value: object) -> str:
    """Return what a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        number = f"a number ({value})" if abs(value) < 1e300 else "a number"
        return number if value == value else "NaN"
    if isinstance(value, np.ndarray):
        return f"an array of {' x '.join(map(str, value.shape))} values"
    if isinstance(value, dict):
        return "an object"
    names: dict[type, str] = {list: "an array", str: "a string"}
    return names.get(type(value), f"a value of type {type(value).__name__}")
