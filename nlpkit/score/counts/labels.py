"""The labels of lines: counts by class, from which accuracy, F1 and MCC are computed, and F1."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import NamedTuple

from nlpkit.contracts.metric import BadLine, Lines, References
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject

_MAX_SHOWN = 5  # labels in a message
_DIGITS = 1000  # of a label that is sorted as a number; `int` reads some more


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


class F1(NamedTuple):
    """Precision, recall and F1."""

    precision: float
    recall: float
    f1: float


def read(hypotheses: Lines, references: References) -> Labels:
    """Return the labels without surrounding white space; raise `BadLine` for an empty line."""
    predicted, right = _strip(hypotheses, 0), _strip(references[0], 1)
    if not right:
        raise DataError("there is no line to score")
    known = {*predicted, *right}
    return Labels(predicted, right, sorted(known, key=_sort_key))


def _strip(lines: Lines, file: int) -> list[str]:
    labels = [line.strip() for line in lines]
    if not all(labels):
        raise BadLine(file, labels.index(""), "an empty line; there must be a label in every line")
    return labels


def _sort_key(label: str) -> tuple[int, int, str]:
    digits = label.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < _DIGITS:
        return 0, int(label), label
    return 1, 0, label


def find_never_right(labels: Labels) -> list[str]:
    """Return a warning if labels are predicted that are right in no line."""
    strange = set(labels.predicted) - set(labels.right)
    if not strange:
        return []
    lines = sum(label in strange for label in labels.predicted)
    names = _shorten(sorted(strange, key=_sort_key))
    return [f"predicted, but never right: {names} (lines: {lines})"]


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")


def make_rows(labels: Labels, classes: Sequence[str]) -> Iterator[tuple[int, ...]]:
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
    pairs = zip(labels.predicted, labels.right, strict=True)
    both = Counter(label for prediction, label in pairs if prediction == label)
    predicted, right = Counter(labels.predicted), Counter(labels.right)
    return [Counts(both[c], predicted[c], right[c]) for c in classes]


def read_row(sums: Sequence[float]) -> list[Counts]:
    """Return the counts of each class from the sum of `make_rows`."""
    return [Counts(*(int(n) for n in sums[k : k + 3])) for k in range(0, len(sums), 3)]


def compute_f1(c: Counts) -> F1:
    """Return precision, recall and F1 of a class; 0 where the divisor is 0."""
    score = _ratio(2 * c.both, c.predicted + c.right)
    return F1(_ratio(c.both, c.predicted), _ratio(c.both, c.right), score)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def compute_average(classes: Sequence[Counts], how: str) -> F1:
    """Return macro, micro, weighted or binary averages; absent classes do not count."""
    if how in ("micro", "binary") and classes:
        # Binary is the sum over one class.
        return compute_f1(Counts(*(sum(column) for column in zip(*classes, strict=True))))
    present = [c for c in classes if c.predicted or c.right]
    weights = [c.right if how == "weighted" else 1 for c in present]
    total = sum(weights)
    if not total:
        return F1(0.0, 0.0, 0.0)
    columns = zip(*map(compute_f1, present), strict=True)
    weighted = (map(mul, weights, column) for column in columns)
    return F1(*(math.fsum(values) / total for values in weighted))


def from_sums(sums: Sequence[float], *, average: str, **_options: object) -> float:
    """Return F1; averages leave out classes that do not occur in the resample."""
    return compute_average(read_row(sums), average).f1


def make_details(table: Mapping[str, Counts]) -> JsonObject:
    """Return precision, recall and F1 of each class, with the numbers of its lines."""
    return {
        name: {**compute_f1(c)._asdict(), "support": c.right, "predicted": c.predicted}
        for name, c in table.items()
    }


def find_never_predicted(table: Mapping[str, Counts]) -> list[str]:
    """Return a warning that names the classes that are never predicted."""
    never = _shorten([name for name, c in table.items() if not c.predicted])
    return [f"precision is set to 0 for what is never predicted: {never}"] if never else []


def format_table(table: Mapping[str, Counts]) -> str:
    """Return a table of text with a line for each class."""
    width = max(5, *map(len, table))
    lines = [f"{'class':<{width}} precision recall     f1 support"]
    for name, c in table.items():
        precision, recall, score = compute_f1(c)
        lines.append(f"{name:<{width}} {precision:9.4f} {recall:6.4f} {score:6.4f} {c.right:7d}")
    return "\n".join(lines)
