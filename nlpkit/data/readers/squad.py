"""Questions in the JSON of SQuAD (Rajpurkar et al. 2016): `data`, `paragraphs`, `qas`.

A row is a question: `id`, `title`, `context`, `question`, `answers` (a list of `text` and
`answer_start`), and `is_impossible` where the file has it (SQuAD 2.0). The row's line is that of
the question's object.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nlpkit.contracts.reader import Counts, RowError, TextFile, Values
from nlpkit.data.lines import kind_of, wrong_character
from nlpkit.data.readers import _located
from nlpkit.errors import DataError

ENDINGS = (".squad.json", ".squad")
FILES = ("rows",)
DOCUMENTS = ""
_PLACE = _located.PLACE


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the questions; raise `DataError` if the file is not in this form."""
    content, line_of = _located.read(file, counts)
    if not isinstance(content, dict):
        raise DataError(f"{file.name}:1: {kind_of(content)}, not an object with data")
    try:
        for article in _list(content, "data"):
            for paragraph in _list(article, "paragraphs"):
                for question in _list(paragraph, "qas"):
                    yield line_of(question), _row(article, paragraph, question)
    except _Wrong as error:
        raise DataError(f"{file.name}:{line_of(error.entry)}: {error}") from error


class _Wrong(Exception):
    """An object of the file is not in the form of SQuAD."""

    def __init__(self, entry: Mapping[str, Any], what: str):
        super().__init__(what)
        self.entry = entry


def _list(entry: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects under a key; raise `_Wrong`."""
    value = entry.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        what = "no" if key not in entry else "no list of objects in"
        raise _Wrong(entry, f'{what} "{key}"; SQuAD\'s form is data, paragraphs, qas')
    return value


def _row(
    article: Mapping[str, Any], paragraph: Mapping[str, Any], question: Mapping[str, Any]
) -> Values | RowError:
    row = {k: v for k, v in question.items() if k != _PLACE}
    if isinstance(row.get("answers"), list):
        row["answers"] = [
            {k: v for k, v in answer.items() if k != _PLACE} if isinstance(answer, dict) else answer
            for answer in row["answers"]
        ]
    for name, source in (("title", article), ("context", paragraph)):
        if name in source:
            row.setdefault(name, source[name])
    texts = [value for value in row.values() if isinstance(value, str)]
    if wrong := next(filter(None, map(wrong_character, texts)), None):
        return RowError(f"a text has {wrong[1]} at character {wrong[0] + 1}")
    return row
