"""Rows of a file that is one JSON value: an array of rows, or an object.

The entries of an array are rows, whose values are named 0, 1, … where they are arrays themselves;
an object is one row. `data.rows` says where the rows are that lie deeper. The file is read as a
whole; one object a line is `jsonl`. A row's line is that of its object.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from json import decoder, scanner
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile
from nlpkit.data.lines import decode, lines
from nlpkit.data.nested import ObjectWithLine, name_values
from nlpkit.data.readers.jsonl import describe, refuse_twins
from nlpkit.errors import DataError

ENDINGS = ()  # .json is jsonl, as most corpora and benchmarks have it


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the entries of the array, or the object; raise `DataError` if the file is no JSON."""
    content = read(file, counts)
    line = 1
    for entry in content if isinstance(content, list) else [content]:
        line = _first_line(entry) or line
        try:
            yield line, name_values(entry)
        except RowError as error:
            yield line, error


def _first_line(value: object) -> int:
    """Return the line of a value's first object, or 0."""
    if isinstance(value, ObjectWithLine):
        return value.line
    return next(filter(None, map(_first_line, value)), 0) if isinstance(value, list) else 0


def read(file: TextFile, counts: Counts) -> object:
    """Return the value of a JSON file, whose objects are `ObjectWithLine`; raise `DataError`."""
    texts = []
    for number, raw in enumerate(lines(file), 1):
        try:
            texts.append(decode(raw))
        except RowError as error:
            raise DataError(f"{file.name}:{number}: {error.what}") from error
    counts.lines += len(texts)
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))

    def parse(text_and_end: tuple[str, int], *arguments: Any) -> tuple[ObjectWithLine, int]:
        found = ObjectWithLine()
        found.line = bisect_right(starts, text_and_end[1] - 1)

        def take(pairs: list[tuple[str, object]]) -> None:
            found.update(pairs)
            try:
                refuse_twins(pairs)
            except RowError as error:
                found.wrong = error

        asked = (*arguments[:3], take, *arguments[4:])  # the fourth gets the pairs
        return found, decoder.JSONObject(text_and_end, *asked)[1]  # type: ignore[attr-defined]

    made: Any = json.JSONDecoder()
    made.parse_object = parse
    made.scan_once = scanner.py_make_scanner(made)  # type: ignore[attr-defined]  # C's has no parse
    try:
        return made.decode("\n".join(texts))
    except (ValueError, RecursionError) as error:
        what, place = describe(error), file.name
        if isinstance(error, json.JSONDecodeError):
            place += f":{error.lineno}"
            hint = "; objects line by line are data.format: jsonl"
            what += hint if error.msg == "Extra data" else ""
        raise DataError(f"{place}: {what}") from error
