"""Accuracy: the share of lines whose label is right.

Each line has one label. The score is 0...1, as `accuracy_score` of scikit-learn.
"""

from collections.abc import Iterator

from nlpkit.contracts.metric import Lines, References, Score, Sums
from nlpkit.score.counts import labels


def score(hypotheses: Lines, references: References) -> Score:
    """Return the share of lines with the right label."""
    read = labels.read(hypotheses, references)
    correct, lines = sum(map(str.__eq__, read.predicted, read.right)), len(read.right)
    details = {
        "correct": correct,
        "lines": lines,
        "classes": len(read.known),
        "warnings": labels.find_never_right(read),
    }
    verbose = f"{correct} of {lines} right"
    return Score("accuracy", correct / lines, _signature(read), verbose, details, percent=False)


def sentences(hypotheses: Lines, references: References) -> Iterator[Score]:
    """Yield 1 for a line with the right label, else 0."""
    read = labels.read(hypotheses, references)
    for predicted, right in zip(read.predicted, read.right, strict=True):
        verbose = f"{predicted} / {right}"
        is_right = float(predicted == right)
        yield Score("accuracy", is_right, _signature(read), verbose, percent=False)


def statistics(hypotheses: Lines, references: References) -> list[tuple[int, int]]:
    """Return for each line a row: 1 if the label is right, else 0; and 1."""
    read = labels.read(hypotheses, references)
    return [(int(a == b), 1) for a, b in zip(read.predicted, read.right, strict=True)]


def from_sums(sums: Sums) -> float:
    """Return the accuracy."""
    return int(sums[0]) / int(sums[1])


def _signature(read: labels.Labels) -> str:
    return f"classes:{len(read.known)}"
