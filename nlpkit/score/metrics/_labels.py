"""Labels a line, and the counts that accuracy, F1 and MCC are made of."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nlpkit.errors import DataError
from nlpkit.score.contract import BadLine

# More names than this in a message say no more.
_SHOWN = 5


class Labels(NamedTuple):
    """What was predicted and what is right, and the labels that occur in either, sorted."""

    predicted: list[str]
    right: list[str]
    known: list[str]


class Counts(NamedTuple):
    """Of one class: lines where it is right and predicted, predicted, right."""

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
    """Sort whole numbers by value, before names."""
    digits = label.removeprefix("-")
    if digits.isascii() and digits.isdecimal():
        return 0, int(label), label
    return 1, 0, label


def warnings(labels: Labels) -> list[str]:
    """Return what may be wrong with the labels themselves: one that is never right."""
    strange = sorted(set(labels.predicted) - set(labels.right), key=_order)
    if not strange:
        return []
    lines = sum(label in set(strange) for label in labels.predicted)
    names = ", ".join(strange[:_SHOWN]) + (", ..." if len(strange) > _SHOWN else "")
    return [f"predicted, but never right: {names} (lines: {lines})"]


def rows(labels: Labels, classes: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yield a row a line: for each class the three numbers of its `Counts`, 0 or 1."""
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
    for ours, theirs in zip(labels.predicted, labels.right, strict=True):
        predicted[ours] += 1
        right[theirs] += 1
        both[ours] += ours == theirs
    return [Counts(both[c], predicted[c], right[c]) for c in classes]


def from_row(sums: Sequence[int]) -> list[Counts]:
    """Return the counts that a sum of `rows` holds."""
    return [Counts(*(int(n) for n in sums[k : k + 3])) for k in range(0, len(sums), 3)]
