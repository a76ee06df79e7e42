"""Rows of parquet files, read batch by batch, with pyarrow.

A row's line is its number. Only the columns that the recipe names are read.
"""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.readers import _arrow

ENDINGS = (".parquet",)
FILES = ("rows",)


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the rows; raise `DataError` for a damaged file, `UsageError` without pyarrow."""
    package = _arrow.pyarrow(file)
    from pyarrow import parquet

    with _arrow.errors(file, package), parquet.ParquetFile(file.path) as opened:
        chosen = _arrow.wanted(columns, opened.schema_arrow.names)
        yield from _arrow.rows(opened.iter_batches(_arrow.AT_ONCE, columns=chosen), counts)
