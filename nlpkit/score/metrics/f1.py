"""F1, with precision and recall: macro, micro or weighted over the classes, or of one class.

Each line has one label. The score is 0...1, as `precision_recall_fscore_support` of scikit-learn
with `zero_division=0`: precision is 0 for a class that is never predicted, and recall is 0 for a
class that is never right. The classes of both files count. Macro averages the F1 of the classes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nlpkit.errors import UsageError
from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _labels
from nlpkit.score.metrics._labels import Counts, Labels

AVERAGES = ("macro", "micro", "weighted", "binary")
REFERENCES = (1, 1)
OPTIONS = (
    Option(
        "average",
        "macro",
        "macro: every class counts the same; micro: every line counts the same (equal to "
        "accuracy); weighted: each class counts by its lines; binary: only --positive",
        choices=AVERAGES,
    ),
    Option("positive", "1", "the class that --average binary scores", metavar="LABEL"),
    Option("per_class", False, "show a row for every class", type=bool),
)


class _Part(NamedTuple):
    precision: float
    recall: float
    f1: float


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    average: str = "macro",
    positive: str = "1",
    per_class: bool = False,
) -> Score:
    """Return F1; `details` has precision, recall, and the same with support for each class.

    Raise `UsageError` if `average` is `binary` and there are more than two classes, or `positive`
    is in neither file.
    """
    labels = _labels.read(hypotheses, references)
    classes = _classes(labels, average, positive)
    total = _average(_labels.count(labels, classes), average)
    table = dict(zip(labels.known, _labels.count(labels, labels.known), strict=True))
    details = {
        "precision": total.precision,
        "recall": total.recall,
        "f1": total.f1,
        "lines": len(labels.right),
        "classes": len(labels.known),
        "by_class": {
            name: {**_part(c)._asdict(), "support": c.right, "predicted": c.predicted}
            for name, c in table.items()
        },
        "warnings": [*_labels.warnings(labels), *_undefined(table)],
    }
    verbose = f"P {total.precision:.4f} R {total.recall:.4f} {len(labels.right)} lines"
    if per_class:
        verbose += "\n" + _rows(table)
    signature = f"avg:{average}|classes:{len(labels.known)}|zero:0"
    if average == "binary":
        signature += f"|positive:{positive}"
    return Score("F1", total.f1, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    average: str = "macro",
    positive: str = "1",
    per_class: bool = False,
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every averaged class (see `_labels.rows`)."""
    labels = _labels.read(hypotheses, references)
    return _labels.rows(labels, _classes(labels, average, positive))


def from_sums(sums: Sequence[int], *, average: str = "macro", **_options: object) -> float:
    """Return F1; the average leaves out classes that do not occur in the resample."""
    return _average(_labels.from_row(sums), average).f1


def _classes(labels: Labels, average: str, positive: str) -> list[str]:
    if average != "binary":
        return labels.known
    if len(labels.known) > 2:
        count = f"average binary needs two classes, there are {len(labels.known)}"
        raise UsageError(f"{count}: choose macro, micro or weighted")
    if positive not in labels.known:
        known = ", ".join(labels.known)
        raise UsageError(f"the positive label {positive!r} is in neither file; labels: {known}")
    return [positive]


def _part(c: Counts) -> _Part:
    return _Part(_ratio(c.both, c.predicted), _ratio(c.both, c.right), _f1(c))


def _f1(c: Counts) -> float:
    return _ratio(2 * c.both, c.predicted + c.right)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _average(classes: Sequence[Counts], average: str) -> _Part:
    if average in ("micro", "binary"):
        # Binary is the sum over one class.
        return _part(Counts(*(sum(column) for column in zip(*classes, strict=True))))
    present = [c for c in classes if c.predicted or c.right]
    weights = [c.right if average == "weighted" else 1 for c in present]
    total, parts = sum(weights), [_part(c) for c in present]
    return _Part(
        *(
            math.fsum(w * part[k] for w, part in zip(weights, parts, strict=True)) / total
            for k in range(3)
        )
    )


def _undefined(table: Mapping[str, Counts]) -> list[str]:
    never = [name for name, c in table.items() if not c.predicted]
    if not never:
        return []
    names = ", ".join(never[:5]) + (", ..." if len(never) > 5 else "")
    return [f"never predicted, so precision is taken as 0: {names}"]


def _rows(table: Mapping[str, Counts]) -> str:
    width = max(5, *map(len, table))
    lines = [f"{'class':<{width}} precision recall     f1 support"]
    for name, c in table.items():
        part = _part(c)
        lines.append(
            f"{name:<{width}} {part.precision:9.4f} {part.recall:6.4f} {part.f1:6.4f} {c.right:7d}"
        )
    return "\n".join(lines)
