"""Questions in the JSON of SQuAD (Rajpurkar et al. 2016): `data`, `paragraphs`, `qas`.

A row is a question: `id`, `title`, `context`, `question`, `answers` (a list of `text` and
`answer_start`), and `is_impossible` where the file has it (SQuAD 2.0). The row's line is that of
the question's object.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import decoder, scanner
from typing import Any

from nlpkit.data.lines import TextFile, lines
from nlpkit.data.readers.contract import Values
from nlpkit.data.records import Counts, RowError, decode, kind_of, wrong_character
from nlpkit.errors import DataError

ENDINGS = (".squad.json", ".squad")
FILES = ("rows",)
INSIDE = ""
_PLACE = "\0place"  # key of the character at which an object begins


class _Located(json.JSONDecoder):
    """A decoder whose objects hold the place at which they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object: Callable[..., Any] = _object
        # The scanner in C calls no `parse_object`.
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _object(text_and_end: tuple[str, int], *arguments: Any) -> tuple[dict[str, Any], int]:
    parse = decoder.JSONObject  # type: ignore[attr-defined]
    found, end = parse(text_and_end, *arguments)
    return {**found, _PLACE: text_and_end[1] - 1}, end


def rows(
    file: TextFile, columns: Sequence[str], counts: Counts
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the questions; raise `DataError` if the file is not in this form."""
    texts = []
    for number, raw in enumerate(lines(file), 1):
        try:
            texts.append(decode(raw))
        except RowError as error:
            raise DataError(f"{file.name}:{number}: {error.what}") from error
    counts.lines += len(texts)
    text = "\n".join(texts)
    starts = [0]
    for each in texts:
        starts.append(starts[-1] + len(each) + 1)
    try:
        content = _Located().decode(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file.name}:{error.lineno}: broken JSON at column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{file.name}: broken JSON: nested too deeply") from error

    def line_of(entry: Mapping[str, Any]) -> int:
        return bisect_right(starts, int(entry[_PLACE]))

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
