"""Rows of RFC 4180: commas between cells; quoted cells may contain line breaks."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile, Texts
from nlpkit.data.lines import decode, lines
from nlpkit.data.template import is_number
from nlpkit.errors import DataError
from nlpkit.plural import number_of

ENDINGS = (".csv",)


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the cells by the names of the header, or by number if `columns` are numbers."""
    return name_cells(file, _cells(file), columns, counts)


def name_cells(
    file: TextFile,
    cells_of: Texts,
    columns: Sequence[str],
    counts: Counts,
    names: list[str] | None = None,
) -> Rows:
    """Yield the line number and the cells by column name of each row, or a `RowError`.

    The `names` are in the first row. If the `columns` are numbers (from 1), there is no header.
    """
    numbered = bool(columns) and all(map(is_number, columns))
    for line, cells in cells_of:
        counts.lines += 1
        if isinstance(cells, RowError):
            if names is None and not numbered:
                raise DataError(f"{file.name}:{line}: {cells.what}")
            yield line, cells
        elif not any(cells):
            counts.blank += 1
        elif numbered:
            yield line, {str(i): cell for i, cell in enumerate(cells, 1)}
        elif names is None:
            names = cells
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                unnamed = f"{names.count('')} columns have no name; give each one"
                what = f'column "{twice[0]}" is there twice' if twice[0] else unnamed
                raise DataError(f"{file.name}:{line}: {what}")
        elif len(cells) != len(names):
            yield line, RowError(f"{number_of(len(cells), 'columns')}; the header has {len(names)}")
        else:
            yield line, dict(zip(names, cells, strict=True))


def _cells(file: TextFile) -> Texts:
    csv.field_size_limit(sys.maxsize)  # by default, a cell of 131,072 characters is an error
    wrong: list[tuple[int, RowError]] = []  # lines of the next row that are not UTF-8

    def texts() -> Iterator[str]:
        for number, raw in enumerate(lines(file), 1):
            try:
                yield decode(raw) + "\n"
            except RowError as error:
                wrong.append((number, error))
                yield raw.decode("utf-8", "replace") + "\n"

    reader = csv.reader(texts(), strict=True)
    begin = 1
    try:
        for cells in reader:
            yield wrong[0] if wrong else (begin, cells)
            wrong.clear()
            begin = reader.line_num + 1
    except csv.Error as error:
        what = str(error).partition(" - ")[0]  # behind it is advice for programmers
        what = what.replace("unexpected end of data", "a quote is opened and not closed")
        raise DataError(f"{file.name}:{begin}: not csv: {what}") from error
