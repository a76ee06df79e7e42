"""Rows of JSON objects, one per line."""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.lines import decode, json_object, lines

ENDINGS = (".jsonl", ".json", ".ndjson")
FILES = ("rows",)
DOCUMENTS = "lines"


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the objects; a repeated key is a `RowError`."""
    example = columns[0] if columns else "text"
    for number, raw in enumerate(lines(file), 1):
        counts.lines += 1
        if not raw or raw.isspace():
            counts.blank += 1
            continue
        try:
            yield number, json_object(decode(raw), example)
        except RowError as error:
            yield number, error
