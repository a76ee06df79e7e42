"""Accuracy: the share of lines whose label is right.

Each line has one label. The score is 0...1, as `accuracy_score` of scikit-learn.
"""

from collections.abc import Iterator, Sequence

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _labels

REFERENCES = (1, 1)
OPTIONS: tuple[Option, ...] = ()


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return the share of lines with the right label."""
    labels = _labels.read(hypotheses, references)
    correct, lines = sum(map(str.__eq__, labels.predicted, labels.right)), len(labels.right)
    details = {
        "correct": correct,
        "lines": lines,
        "classes": len(labels.known),
        "warnings": _labels.warnings(labels),
    }
    verbose = f"{correct} of {lines} right"
    return Score("accuracy", correct / lines, _signature(labels), verbose, details, percent=False)


def sentences(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Iterator[Score]:
    """Yield 1 for a line with the right label, else 0."""
    labels = _labels.read(hypotheses, references)
    signature = _signature(labels)
    for predicted, right in zip(labels.predicted, labels.right, strict=True):
        is_right = float(predicted == right)
        yield Score("accuracy", is_right, signature, f"{predicted} / {right}", percent=False)


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Return for each line a row: 1 if the label is right, else 0; and 1."""
    labels = _labels.read(hypotheses, references)
    return [(int(a == b), 1) for a, b in zip(labels.predicted, labels.right, strict=True)]


def from_sums(sums: Sequence[int], **_options: object) -> float:
    """Return the accuracy."""
    return int(sums[0]) / int(sums[1])


def _signature(labels: _labels.Labels) -> str:
    return f"classes:{len(labels.known)}"
