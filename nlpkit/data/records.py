"""From the bytes of a row (a line, or the lines of a paragraph) to its text, or what is wrong.

`Counts` counts every line that is read in one of its numbers.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nlpkit.data.lines import TextFile, lines
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of
from nlpkit.registry import suggest

_SHOWN_KEYS = 10
KEPT_MESSAGES = 20


class RowError(Exception):
    """A row without usable text: what is wrong, and in which line of the row, from 1."""

    def __init__(self, what: str, line: int = 1):
        super().__init__(what, line)
        self.what = what
        self.line = line


class Bad(NamedTuple):
    """A row that was skipped; printed as `file:line: what`."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


_BETWEEN_BLANK_LINES = ("paragraphs", "sentences")  # formats whose documents have several lines


@dataclass
class Counts:
    """What was read and what was left out; `characters` and `bytes` (UTF-8) are the documents'.

    `blank` lines and `empty` texts are no documents; `held_out` ones belong to the other part.
    `unknown` tokens and documents without any token (`tokenless`) are known once it is tokenised;
    `unlearned` are the unknown ones in the targets of a task, which are not learned.
    """

    lines: int = 0
    documents: int = 0
    blank: int = 0
    empty: int = 0
    bad: int = 0
    held_out: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0
    tokenless: int = 0
    unlearned: int = 0
    first_bad: list[Bad] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add `other`, whose rows come later."""
        for name, value in vars(other).items():
            if name != "first_bad":
                setattr(self, name, getattr(self, name) + value)
        free = KEPT_MESSAGES - len(self.first_bad)
        self.first_bad += other.first_bad[:free]

    def add_bad(self, bad: Bad) -> None:
        """Count a row that is skipped and keep what is wrong with it, if among the first."""
        self.bad += 1
        if len(self.first_bad) < KEPT_MESSAGES:
            self.first_bad.append(bad)


@dataclass(frozen=True)
class Rows:
    """How to find the text in a row; a field that the format does not need is None."""

    format: str
    key: str | None = None
    column: int | None = None
    columns: int | None = None
    line_break: str | None = None

    @property
    def has_header(self) -> bool:
        return self.columns is not None


def rows_of(file: TextFile, text_key: str, line_break: str | None) -> Rows:
    """Return how the rows of `file` are read; reads the header of a tsv file.

    A `text_key` made of digits is a column, counted from 1, of a tsv file without a header.
    """
    if file.format == "jsonl":
        return Rows("jsonl", key=text_key)
    if file.format in _BETWEEN_BLANK_LINES:
        return Rows(file.format)
    if file.format == "text":
        return Rows("text", line_break=line_break)
    if file.format == "parallel":
        return Rows("parallel", line_break=line_break)
    if file.format != "tsv":
        raise UsageError(
            f"{file.name}: {file.format} is read for the rows of a task (a classification, say); "
            "for running text make it jsonl or tsv"
        )
    if text_key.isascii() and text_key.isdigit():
        if int(text_key) == 0:
            raise UsageError("data.text_key: columns are counted from 1")
        return Rows("tsv", key=text_key, column=int(text_key) - 1, line_break=line_break)
    header = next(lines(file), None)
    if header is None:
        raise DataError(f"{file.name}: empty file")
    try:
        names = decode(header).split("\t")
    except RowError as bad:
        raise DataError(f"{file.name}:1: {bad.what}") from bad
    if names.count(text_key) != 1:
        twice = f'column "{text_key}" is there twice'
        what = twice if text_key in names else no_such(text_key, names)
        raise DataError(f"{file.name}:1: {what}")
    column = names.index(text_key)
    return Rows("tsv", key=text_key, column=column, columns=len(names), line_break=line_break)


def records(raw_lines: Iterator[bytes], rows: Rows, counts: Counts) -> Iterator[tuple[int, bytes]]:
    """Yield each row and the number of the line it starts at, counting lines and blank ones."""
    return (_paragraphs if rows.format in _BETWEEN_BLANK_LINES else _single_lines)(
        raw_lines, counts
    )


def _single_lines(raw_lines: Iterator[bytes], counts: Counts) -> Iterator[tuple[int, bytes]]:
    for raw in raw_lines:
        counts.lines += 1
        if raw and not raw.isspace():
            yield counts.lines, raw
        else:
            counts.blank += 1


def _paragraphs(raw_lines: Iterator[bytes], counts: Counts) -> Iterator[tuple[int, bytes]]:
    held: list[bytes] = []
    for raw in raw_lines:
        counts.lines += 1
        if raw and not raw.isspace():
            held.append(raw)
            continue
        counts.blank += 1
        if held:
            yield counts.lines - len(held), b"\n".join(held)
            held = []
    if held:
        yield counts.lines + 1 - len(held), b"\n".join(held)


def text_of(raw: bytes, rows: Rows) -> tuple[str, bytes]:
    """Return the text of a row, and the same as UTF-8; raise `RowError`."""
    text = decode(raw)
    if rows.format == "jsonl":
        text = _from_json(text, rows.key or "")
    elif rows.format == "tsv":
        text = _from_columns(text, rows)
    if rows.line_break is not None:
        text = text.replace(rows.line_break, "\n")
    if wrong := wrong_character(text):
        index, what = wrong
        # Only a paragraph has lines of the file in its text.
        line, where = 1, index + 1
        if rows.format in _BETWEEN_BLANK_LINES:
            line, where = 1 + text.count("\n", 0, index), index - text.rfind("\n", 0, index)
        raise RowError(f"character {where} of the text is {what}", line)
    return text, text.encode()


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


def _from_json(line: str, key: str) -> str:
    twice = line.count(json.dumps(key)) > 1 or line.count(f'"{key}"') > 1
    row = json_object(line, key, strict=twice)
    if key not in row:
        raise RowError(no_such(key, list(row)))
    if not isinstance(row[key], str):
        raise RowError(f'"{key}" is {kind_of(row[key])}, not a string')
    return row[key]


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
            hint = "; one object a line is needed: jq -c . (or jq -c '.[]' for an array)"
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise RowError(f"broken JSON at column {error.colno}: {what}{hint}") from error
    except RecursionError as error:
        raise RowError("broken JSON: nested too deeply") from error
    except ValueError as error:
        raise RowError(f"broken JSON: {error}") from error
    if not isinstance(row, dict):
        hint = " (jq -c '.[]' makes that)" if isinstance(row, list) else ""
        raise RowError(f'{kind_of(row)}, not an object like {{"{example}": "..."}}{hint}')
    return row


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RowError(f'"{next(key for key in keys if keys.count(key) > 1)}" is there twice')
    return row


def _from_columns(line: str, rows: Rows) -> str:
    cells = line.split("\t")
    assert rows.column is not None
    if rows.columns is not None and len(cells) != rows.columns:
        raise RowError(f"{number_of(len(cells), 'columns')}; the header has {rows.columns}")
    if len(cells) <= rows.column:
        raise RowError(
            f"{number_of(len(cells), 'columns')}; the text is in column {rows.column + 1}"
        )
    return cells[rows.column]


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
    names: dict[type, str] = {list: "an array", dict: "an object", str: "a string"}
    return names[type(value)]
