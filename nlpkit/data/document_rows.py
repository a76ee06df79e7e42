"""Documents that are rows with columns: in files of jsonl, tsv, `parallel`, of readers."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.data import formats, template
from nlpkit.data.documents import Document, Rows, count_bad, document_of, text_of
from nlpkit.data.lines import decode, json_object, kind_of, lines, no_such, wrong_character
from nlpkit.data.readers import parallel
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of


def tsv_rows(file: TextFile, text_key: str, line_break: str | None) -> Rows:
    """Return how the rows of a tsv file are read, by its header if it has one."""
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


def text_of_row(line: str, rows: Rows) -> str:
    """Return the text in a line of jsonl or tsv; raise `RowError`."""
    return _read_json(line, rows.key or "") if rows.format == "jsonl" else _read_columns(line, rows)


def _read_json(line: str, key: str) -> str:
    twice = line.count(json.dumps(key)) > 1 or line.count(f'"{key}"') > 1
    # A template may name any key.
    row = json_object(line, key, strict=twice or template.is_template(key))
    return _text_in(row, key)


def _text_in(row: Mapping[str, Any], key: str) -> str:
    """Return the text at a key, at a path or of a template; raise `RowError`."""
    if template.is_template(key):
        return template.fill(key, row)
    value = row[key] if key in row else template.value_at(row, key)
    if not isinstance(value, str):
        raise RowError(f'"{key}" is {kind_of(value)}, not a string')
    return value


def _read_columns(line: str, rows: Rows) -> str:
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


def read_pairs(
    file: TextFile, config: Config, counts: Counts, rows: Rows, part: Part
) -> Iterator[Document]:
    """Yield each pair of lines as a document of two texts; it is held out by both."""
    for line, found in parallel.rows(file, (), counts):
        try:
            if isinstance(found, RowError):
                raise found
            pair = [text_of(found[side].encode(), rows) for side in parallel.FILES]
        except RowError as bad:
            count_bad(bad, file, line, config, counts)
            continue
        if document := document_of(file, line, pair, config, counts, part):
            yield document


def read_rows(
    file: TextFile, config: Config, counts: Counts, rows: Rows, part: Part
) -> Iterator[Document]:
    """Yield the text of each row that a reader finds; it is held out by its text, as any other."""
    assert rows.key is not None
    named = template.columns(rows.key)
    for line, found in formats.reader(rows.format).rows(file, named, counts):
        try:
            if isinstance(found, RowError):
                raise found
            text = _text_in(found, rows.key)
            if wrong := wrong_character(text):
                raise RowError(f"character {wrong[0] + 1} of the text is {wrong[1]}")
        except RowError as bad:
            count_bad(bad, file, line, config, counts)
            continue
        if document := document_of(file, line, [(text, text.encode())], config, counts, part):
            yield document
