"""From the bytes of a row (a line, or the lines of a paragraph) to its text, or what is wrong."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.data import formats, template
from nlpkit.data.lines import lines
from nlpkit.data.records import decode, json_object, kind_of, no_such, wrong_character
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of

_BETWEEN_BLANK_LINES = ("paragraphs", "sentences")  # formats whose documents have several lines


@dataclass(frozen=True)
class Rows:
    """How to find the text in a row; a field that the format does not need is None.

    `key` is a key, a column, a path or a template; `names` are those of the columns of a tsv file
    with a header, where several are read.
    """

    format: str
    key: str | None = None
    column: int | None = None
    columns: int | None = None
    line_break: str | None = None
    names: tuple[str, ...] | None = None

    def identity(self) -> dict[str, Any]:
        """Return what decides the texts, as JSON; of a plain key the same as in old caches."""
        found = asdict(self)
        return found if self.names is not None else {k: found[k] for k in found if k != "names"}

    @property
    def has_header(self) -> bool:
        return self.columns is not None


def rows_of(file: TextFile, text_key: str | list[str], line_break: str | None) -> Rows:
    """Return how the rows of `file` are read; reads the header of a tsv file.

    A `text_key` made of digits is a column, counted from 1, of a tsv file without a header; the
    texts of several keys are joined with a line break.
    """
    if isinstance(text_key, list):
        text_key = template.as_template(text_key) if len(text_key) > 1 else text_key[0]
    if file.format == "jsonl":
        return Rows("jsonl", key=text_key)
    if file.format in _BETWEEN_BLANK_LINES:
        return Rows(file.format)
    if file.format == "text":
        return Rows("text", line_break=line_break)
    if file.format == "parallel":
        return Rows("parallel", line_break=line_break)
    if formats.is_read_whole(file.format):
        return Rows(file.format, key=text_key)
    if file.format != "tsv":
        raise UsageError(
            f"{file.name}: {file.format} is read for the rows of a task (a classification, say); "
            "for running text make it jsonl or tsv"
        )
    named = template.columns(text_key)
    if template.is_template(text_key) and all(name.isascii() and name.isdigit() for name in named):
        return Rows("tsv", key=text_key, line_break=line_break)
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
    is_template = template.is_template(text_key)
    for name in named:
        if names.count(name) != 1:
            twice = f'column "{name}" is there twice'
            what = twice if name in names else no_such(name, names)
            raise DataError(f"{file.name}:1: {what}")
    if is_template:
        columns = len(names)
        return Rows("tsv", text_key, columns=columns, line_break=line_break, names=tuple(names))
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


def _from_json(line: str, key: str) -> str:
    twice = line.count(json.dumps(key)) > 1 or line.count(f'"{key}"') > 1
    # A template may name any key.
    row = json_object(line, key, strict=twice or template.is_template(key))
    return text_in(row, key)


def text_in(row: Mapping[str, Any], key: str) -> str:
    """Return the text at a key, at a path or of a template; raise `RowError`."""
    if template.is_template(key):
        return template.fill(key, row)
    value = template.value_at(row, key)
    if not isinstance(value, str):
        raise RowError(f'"{key}" is {kind_of(value)}, not a string')
    return value


def _from_columns(line: str, rows: Rows) -> str:
    cells = line.split("\t")
    if rows.columns is not None and len(cells) != rows.columns:
        raise RowError(f"{number_of(len(cells), 'columns')}; the header has {rows.columns}")
    if rows.column is None:
        names = rows.names or map(str, range(1, len(cells) + 1))
        return template.fill(rows.key or "", dict(zip(names, cells, strict=True)))
    if len(cells) <= rows.column:
        raise RowError(
            f"{number_of(len(cells), 'columns')}; the text is in column {rows.column + 1}"
        )
    return cells[rows.column]
