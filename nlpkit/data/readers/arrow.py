"""Rows of Arrow files (streams, as the datasets library saves them, or random access files).

Read batch by batch, memory-mapped, with pyarrow. A row's line is its number.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nlpkit.contracts.reader import Counts, Rows, TextFile
from nlpkit.data.readers.parquet import arrow_errors, choose_columns, rows_of
from nlpkit.errors import DataError

ENDINGS = (".arrow", ".feather")
_FILE_MAGIC = b"ARROW1"  # what a file begins with that is no stream


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the rows; raise `DataError` for a damaged file, `UsageError` without pyarrow."""
    with arrow_errors(file):
        import pyarrow
        from pyarrow import ipc

        with pyarrow.memory_map(file.path) as source:
            if source.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
                table = ipc.open_file(source)
                batches: Iterator[Any] = map(table.get_batch, range(table.num_record_batches))
            else:
                source.seek(0)
                table = ipc.open_stream(source)
                batches = _read_stream(table, source, file.name)
            chosen = choose_columns(file, columns, table.schema.names)
            yield from rows_of((batch.select(chosen) for batch in batches), counts)


def _read_stream(stream: Any, source: Any, name: str) -> Iterator[Any]:
    """Yield the batches; raise `DataError` if no mark of the end follows the last one."""
    stop = source.tell()
    for batch in stream:
        stop = source.tell()
        yield batch
    if source.tell() == stop:
        raise DataError(f"{name}: is cut: it lacks the mark that ends an Arrow stream")
