"""Turns rows of cells into values by column, for tsv and csv: by name or by number."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.errors import DataError
from nlpkit.plural import number_of


def name_cells(
    file: TextFile,
    cells_of: Iterator[tuple[int, list[str] | RowError]],
    columns: Sequence[str],
    counts: Counts,
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the line number and the cells by column name of each row, or a `RowError`.

    The names are in the first row. If all `columns` are numbers (from 1), there is no header.
    """
    numbered = all(name.isascii() and name.isdigit() for name in columns)
    names: list[str] | None = None
    for line, cells in cells_of:
        counts.lines += 1
        if isinstance(cells, RowError):
            yield line, cells
        elif not any(cells):
            counts.blank += 1
        elif numbered:
            yield line, {str(i): cell for i, cell in enumerate(cells, 1)}
        elif names is None:
            names = cells
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise DataError(f'{file.name}:{line}: column "{twice[0]}" is there twice')
        elif len(cells) != len(names):
            yield line, RowError(f"{number_of(len(cells), 'columns')}; the header has {len(names)}")
        else:
            yield line, dict(zip(names, cells, strict=True))
