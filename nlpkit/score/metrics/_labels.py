"""The labels of lines, and the counts from which accuracy, F1 and MCC are computed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nlpkit.errors import DataError
from nlpkit.score.contract import BadLine

_MAX_SHOWN = 5  # labels in a message


class Labels(NamedTuple):
    """The predicted and the right label of each line, and all labels in sorted order."""

    predicted: list[str]
    right: list[str]
    known: list[str]


class Counts(NamedTuple):
    """The numbers of lines where a class is both predicted and right, predicted, and right."""

    both: int
    predicted: int
    right: int


def read(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Labels:
    """Return the labels without surrounding white space; raise `BadLine` for an empty line."""
    predicted, right = _strip(hypotheses, 0), _strip(references[0], 1)
    if not right:
        raise DataError("there is no line to score")
    known = {*predicted, *right}
    return Labels(predicted, right, sorted(known, key=_order))


def _strip(lines: Sequence[str], file: int) -> list[str]:
    labels = [line.strip() for line in lines]
    if not all(labels):
        raise BadLine(file, labels.index(""), "an empty line; there must be a label in every line")
    return labels


def _order(label: str) -> tuple[int, int, str]:
    """Return the sort key: integers by value, then names."""
    digits = label.removeprefix("-")
    if digits.isascii() and digits.isdecimal():
        return 0, int(label), label
    return 1, 0, label


def warnings(labels: Labels) -> list[str]:
    """Return a warning if labels are predicted that are right in no line."""
    strange = sorted(set(labels.predicted) - set(labels.right), key=_order)
    if not strange:
        return []
    lines = sum(label in set(strange) for label in labels.predicted)
    names = ", ".join(strange[:_MAX_SHOWN]) + (", ..." if len(strange) > _MAX_SHOWN else "")
    return [f"predicted, but never right: {names} (lines: {lines})"]


def rows(labels: Labels, classes: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yield for each line the `Counts` of each class in a row: numbers that are 0 or 1."""
    column = {label: 3 * k for k, label in enumerate(classes)}
    for predicted, right in zip(labels.predicted, labels.right, strict=True):
        row = [0] * (3 * len(classes))
        if predicted in column:
            row[column[predicted] + 1] = 1
        if right in column:
            row[column[right] + 2] = 1
            row[column[right]] = int(predicted == right)
        yield tuple(row)


def count(labels: Labels, classes: Sequence[str]) -> list[Counts]:
    """Return the counts of each class over all lines."""
    both = dict.fromkeys(labels.known, 0)
    predicted, right = dict(both), dict(both)
    for prediction, label in zip(labels.predicted, labels.right, strict=True):
        predicted[prediction] += 1
        right[label] += 1
        both[prediction] += prediction == label
    return [Counts(both[c], predicted[c], right[c]) for c in classes]


def from_row(sums: Sequence[int]) -> list[Counts]:
    """Return the counts of each class from the sum of `rows`."""
    return [Counts(*(int(n) for n in sums[k : k + 3])) for k in range(0, len(sums), 3)]
