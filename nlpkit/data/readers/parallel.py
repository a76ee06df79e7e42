"""Two text files, a source and its translation: each row has a `source` and a `target` line."""

from collections.abc import Sequence
from itertools import zip_longest

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile
from nlpkit.data.lines import check_characters, decode, lines
from nlpkit.errors import DataError
from nlpkit.plural import number_of

ENDINGS = ()
FILES = ("source", "target")
DOCUMENTS = "lines"


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the pairs of lines; pairs with an empty line are only counted.

    Raises:
        DataError: the files have different numbers of lines.
    """
    assert file.second is not None
    read = [0, 0]  # lines of each file
    for count, (source, target) in enumerate(zip_longest(lines(file), lines(file.second)), 1):
        read[0] += source is not None
        read[1] += target is not None
        if source is None or target is None:
            continue
        counts.lines += 1
        if not source.strip() or not target.strip():
            counts.empty += 1
            continue
        try:
            texts = decode(source), _decode_target(target, file.second.name)
            yield count, dict(zip(FILES, texts, strict=True))
        except RowError as error:
            yield count, error
    if read[0] != read[1]:
        raise DataError(
            f"{file.name} has {number_of(read[0], 'lines')} and {file.second.name} has "
            f"{read[1]:,}; line n of "
            "one file must belong to line n of the other"
        )


def _decode_target(raw: bytes, name: str) -> str:
    try:
        text = decode(raw)
        check_characters(text)
        return text
    except RowError as error:
        raise RowError(f"in {name}: {error.what}") from error
