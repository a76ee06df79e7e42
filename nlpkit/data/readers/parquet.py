"""Rows of parquet files, read batch by batch, with pyarrow.

A row's line is its number. Of documents only the columns that the recipe names are read.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nlpkit.contracts.reader import Counts, Rows, TextFile
from nlpkit.data.lines import open_bytes
from nlpkit.errors import DataError, UsageError, not_installed

ENDINGS = (".parquet",)
AT_ONCE = 1024  # rows that are values of Python


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the rows; raise `DataError` for a damaged file, `UsageError` without pyarrow."""
    with arrow_errors(file):
        from pyarrow import parquet

        with parquet.ParquetFile(file.path) as opened:
            chosen = choose_columns(file, columns, opened.schema_arrow.names)
            yield from rows_of(opened.iter_batches(AT_ONCE, columns=chosen), counts)


@contextmanager
def arrow_errors(file: TextFile) -> Iterator[None]:
    """Turn the errors of a file that cannot be opened or is damaged into one line."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(f"{file.name}: {not_installed('pyarrow')}") from error
    open_bytes(file).close()  # a file that cannot be opened is no damaged one
    try:
        yield
    except (pyarrow.ArrowException, OSError, SystemError) as error:
        what = "gunzip it first" if file.gzip else str(error).partition("\n")[0]
        raise DataError(f"{file.name}: cannot be read as {file.format}: {what}") from error
    except (ValueError, OverflowError) as error:  # such as a time
        raise DataError(f"{file.name}: a value that Python cannot hold: {error}") from error


def choose_columns(file: TextFile, columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a file that settings name by themselves or as the start of a path.

    All of them where none is named, or one that is not there: the message shows what is. Raise
    `DataError` if a column that is read is there twice.
    """
    roots = {name if name in names else name.partition(".")[0] for name in columns}
    read = [name for name in names if name in roots] if roots and roots <= {*names} else names
    if twice := [name for name, count in Counter(read).items() if count > 1]:
        raise DataError(f'{file.name}: column "{twice[0]}" is there twice')
    return [*read]


def rows_of(batches: Iterator[Any], counts: Counts) -> Rows:
    """Yield number, from 1, and values of each row."""
    numbers = itertools.count(1)
    for batch in batches:
        batch.validate(full=True)  # a damaged one would end the process
        names, starts = batch.schema.names, range(0, batch.num_rows, AT_ONCE)
        for start in starts:
            columns = [_to_list(each.slice(start, AT_ONCE)) for each in batch.columns]
            for values in zip(*columns, strict=True):
                counts.lines += 1
                yield next(numbers), dict(zip(names, values, strict=True))


def _to_list(column: Any) -> list[Any]:
    """Return the values of a column; times that Python does not hold are numbers."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        from pyarrow import types

        if not types.is_temporal(column.type):
            raise
        return column.cast("int64").to_pylist()
