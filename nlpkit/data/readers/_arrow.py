"""Batches of Arrow tables -> rows, for files of parquet and Arrow. Needs pyarrow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nlpkit.contracts.reader import Counts, TextFile, Values
from nlpkit.errors import DataError, FileError, UsageError, not_installed

AT_ONCE = 1024  # rows of a batch


def pyarrow(file: TextFile) -> ModuleType:
    """Return the package; raise `UsageError` where it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(f"{file.name}: {not_installed('pyarrow')}") from error
    return pyarrow


@contextmanager
def errors(file: TextFile, package: ModuleType) -> Iterator[None]:
    """Turn the errors of a file that is missing or damaged into one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileError(f"{file.name}: no such file") from error
    except (package.ArrowException, OSError) as error:
        what = str(error).partition("\n")[0]
        raise DataError(f"{file.name}: not a {file.format} file: {what}") from error


def wanted(columns: Sequence[str], names: Sequence[str]) -> list[str] | None:
    """Return the columns of a file that settings name by themselves or as the start of a path.

    None: all of them, as one that is named is not there, and the message shows what is.
    """
    roots = [name if name in names else name.partition(".")[0] for name in columns]
    return list(dict.fromkeys(roots)) if roots and {*roots} <= {*names} else None


def rows(batches: Iterator[Any], counts: Counts) -> Iterator[tuple[int, Values]]:
    """Yield number, from 1, and values of each row."""
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            number += 1
            counts.lines += 1
            yield number, values
