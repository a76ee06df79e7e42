"""Rows of RFC 4180: commas between cells; quoted cells may contain line breaks."""

import csv
import sys
from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.lines import decode, lines
from nlpkit.data.readers._columns import name_cells
from nlpkit.errors import DataError

ENDINGS = (".csv",)
FILES = ("rows",)


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the cells by the names of the header, or by number if `columns` are numbers."""
    return name_cells(file, _cells(file), columns, counts)


def _cells(file: TextFile) -> Iterator[tuple[int, list[str] | RowError]]:
    def texts() -> Iterator[str]:
        for number, raw in enumerate(lines(file), 1):
            try:
                yield decode(raw) + "\n"
            except RowError as error:
                raise DataError(f"{file.name}:{number}: {error.what}") from error

    csv.field_size_limit(sys.maxsize)  # by default, a cell of 131,072 characters is an error
    reader = csv.reader(texts(), strict=True)
    begin = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{file.name}:{begin}: not csv: {error}") from error
        yield begin, cells
        begin = reader.line_num + 1
