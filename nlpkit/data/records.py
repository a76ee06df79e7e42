"""What is read of a file, line by line: what is wrong with a row, and what is counted.

`Counts` counts every line that is read in one of its numbers.
"""

import json
from typing import Any

import numpy as np

from nlpkit.contracts.reader import RowError
from nlpkit.registry import suggest

_SHOWN_KEYS = 10


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
        row = json.loads(line, object_pairs_hook=_without_twins if strict else None)
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


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
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
