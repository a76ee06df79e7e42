"""Rows of lines with tabs between cells; there are no quoted cells."""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.lines import decode, lines
from nlpkit.data.readers._columns import name_cells

ENDINGS = (".tsv",)
FILES = ("rows",)
DOCUMENTS = "lines"


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the cells by the names of the header, or by number if `columns` are numbers."""
    return name_cells(file, _cells(file), columns, counts)


def _cells(file: TextFile) -> Iterator[tuple[int, list[str] | RowError]]:
    for number, raw in enumerate(lines(file), 1):
        try:
            yield number, decode(raw).split("\t") if raw.strip() else []
        except RowError as error:
            yield number, error
