"""Rows of lines with tabs between cells; there are no quoted cells."""

import dataclasses
from collections.abc import Sequence

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile, Texts
from nlpkit.data.lines import decode, lines
from nlpkit.data.readers.csv import name_cells

ENDINGS = (".tsv",)
DOCUMENTS = "lines"


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the cells by the names of the header, or by number if `columns` are numbers."""
    names = None
    if file.start:  # the header is not in this range
        whole = _cells(dataclasses.replace(file, start=0, stop=None))
        names = next(cells for _, cells in whole if isinstance(cells, list) and any(cells))
    return name_cells(file, _cells(file), columns, counts, names)


def _cells(file: TextFile) -> Texts:
    for number, raw in enumerate(lines(file), 1):
        try:
            yield number, decode(raw).split("\t") if raw.strip() else []
        except RowError as error:
            yield number, error
