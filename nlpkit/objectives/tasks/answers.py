"""The answers of a question that stand in its context, as SQuAD has them, checked."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nlpkit.contracts.reader import Row, RowError
from nlpkit.data.lines import kind_of
from nlpkit.json_types import JsonObject

_SHOWN = 30  # characters of an answer in a message


class Answer(NamedTuple):
    """An answer: its text, and the characters [start, stop) of the context."""

    text: str
    start: int
    stop: int


class Found(NamedTuple):
    """The best span of a row: tokens [start, stop] of the context, and its score over none."""

    start: int
    stop: int
    margin: float


def read_answers(row: Row, column: str, context: str, *, nearest: bool) -> list[Answer]:
    """Return the answers in a column; none if the question has none.

    A column has a list of `{"text": …, "answer_start": …}` as in SQuAD, or an object with the lists
    `text` and `answer_start`, as in the `datasets` library. With `nearest`, where `answer_start` is
    wrong, the text is looked for, and the nearest taken.

    Raises:
        RowError: a value is wrong, or an answer is not in the context.
    """
    if row.values.get("is_impossible") is True:
        return []
    value = row.value(column)
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise RowError(f'"{column}" needs the lists text and answer_start, of one length')
        value = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise RowError(
            f'"{column}" is {kind_of(value)}, not a list of {{"text": …, "answer_start": …}}'
        )
    return [_check_answer(each, column, context, nearest) for each in value]


def _check_answer(answer: JsonObject, column: str, context: str, nearest: bool) -> Answer:
    text, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(text, str) or not text.strip():
        what = "empty" if isinstance(text, str) else kind_of(text)
        raise RowError(f'"{column}": the text of an answer is {what}')
    if not isinstance(start, int) or isinstance(start, bool):
        raise RowError(f'"{column}": answer_start is {kind_of(start)}, not a whole number')
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start, start + len(text))
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    places = [context.rfind(text, 0, max(start, 0) + len(text)), context.find(text, max(start, 0))]
    found = [place for place in places if place >= 0]
    if not found:
        raise RowError(f'"{column}": the context does not hold the answer {shown!r}')
    place = min(found, key=lambda place: abs(place - start))
    if not nearest:
        raise RowError(
            f'"{column}": the answer {shown!r} is not at character {start} of the context, but at '
            f"{place}; correct it, or set objective.nearest_answer: true"
        )
    return Answer(text, place, place + len(text))


def best_span(scores: np.ndarray, longest: int) -> tuple[float, int, int]:
    """Return the highest sum of a first and a last token's score (L, 2), and both tokens.

    The last token is at most `longest` - 1 after the first; the first of equal sums counts.
    """
    best = (-np.inf, 0, 0)
    for distance in range(min(longest, len(scores))):
        sums = scores[: len(scores) - distance, 0] + scores[distance:, 1]
        first = int(sums.argmax())
        if sums[first] > best[0]:
            best = float(sums[first]), first, first + distance
    return best


def trim_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the characters of each token without white space at either end."""
    found = []
    for start, stop in spans:
        piece = text[start:stop]
        before = len(piece) - len(piece.lstrip())
        after = len(piece) - len(piece.rstrip())
        found.append((start + before, stop - after) if piece.strip() else (start, stop))
    return found


def find_tokens(spans: np.ndarray, answer: Answer) -> tuple[int, int] | None:
    """Return the first and the last token with a character of the answer, or None."""
    inside = np.flatnonzero((spans[:, 1] > answer.start) & (spans[:, 0] < answer.stop))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
