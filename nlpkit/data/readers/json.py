"""Rows of a file that is one JSON value: an array of rows, or an object.

The entries of an array are rows, whose values are named 0, 1, … where they are arrays themselves;
an object is one row. `data.rows` says where the rows are that lie deeper. The file is read as a
whole; one object a line is `jsonl`. A row's line is that of its object.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.lines import kind_of
from nlpkit.data.nested import Located
from nlpkit.data.readers import _located

ENDINGS = ()  # .json is jsonl, as most corpora and benchmarks have it
FILES = ("rows",)


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the entries of the array, or the object; raise `DataError` if the file is no JSON."""
    content, line_of = _located.read(file, counts)
    entries = content if isinstance(content, list) else [content]
    line = 1
    for entry in entries:
        row = _plain(entry, line_of)
        line = _first_line(row) or line
        if isinstance(row, list):
            row = {str(number): value for number, value in enumerate(row)}
        if isinstance(row, dict):
            yield line, row
        else:
            yield line, RowError(f"{kind_of(row)}, not an object or an array")


def _plain(value: Any, line_of: Callable[[Mapping[str, Any]], int]) -> Any:
    """Return a value whose objects know their lines, and hold nothing else."""
    if isinstance(value, list):
        return [_plain(each, line_of) for each in value]
    if not isinstance(value, dict):
        return value
    inner = value.items()
    found = Located({k: _plain(v, line_of) for k, v in inner if k != _located.PLACE})
    found.line = line_of(value)
    return found


def _first_line(value: Any) -> int:
    """Return the line of a value's first object, or 0."""
    if isinstance(value, Located):
        return value.line
    return next(filter(None, map(_first_line, value)), 0) if isinstance(value, list) else 0
