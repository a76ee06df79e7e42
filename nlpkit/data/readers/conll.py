"""Sentences in columns, as in CoNLL: a word a line with its tags, blank lines between sentences.

Cells are divided by tabs, or by spaces where a line has no tab. A row is a sentence: lists of the
cells by column, `1`, `2`, …, also called `words` (the first) and `tags` (the last). `-DOCSTART-`
lines are left out. The row's line is that of its first word.
"""

from collections.abc import Sequence

from nlpkit.contracts.reader import Counts, RowError, Rows, TextFile
from nlpkit.data.lines import decode, lines
from nlpkit.plural import number_of

ENDINGS = (".conll", ".bio", ".iob", ".bmes", ".bioes")
DOCUMENTS = ""
_DOCUMENT = b"-DOCSTART-"


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the columns of each sentence; one whose lines differ in columns is a `RowError`."""
    held: list[list[str]] = []
    begin, number, wrong = 0, 0, False
    for number, raw in enumerate(lines(file), 1):
        counts.lines += 1
        if raw.isspace() or not raw or raw.startswith(_DOCUMENT):
            counts.blank += 1
            if held and not wrong:
                yield begin, _columns(held)
            held, wrong = [], False
            continue
        begin = begin if held or wrong else number
        if wrong:  # the rest of a sentence with a mistake
            continue
        try:
            held.append(_cells(raw, held))
        except RowError as error:
            wrong = True
            yield number, error
    if held and not wrong:
        yield begin, _columns(held)


def _cells(raw: bytes, held: list[list[str]]) -> list[str]:
    text = decode(raw)
    cells = text.split("\t") if "\t" in text else [c for c in text.split(" ") if c]
    if len(cells) < 2:
        raise RowError("1 column; a word and its tag are needed, a tab or a space between them")
    if held and len(cells) != len(held[0]):
        raise RowError(f"{number_of(len(cells), 'columns')}; the line before has {len(held[0])}")
    return cells


def _columns(sentence: list[list[str]]) -> dict[str, list[str]]:
    columns = [list(column) for column in zip(*sentence, strict=True)]
    named = {str(number): column for number, column in enumerate(columns, 1)}
    return {"words": columns[0], "tags": columns[-1], **named}
