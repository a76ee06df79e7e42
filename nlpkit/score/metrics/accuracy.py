"""Accuracy: the share of lines whose label is right.

Each line has one label. The score is 0...1, as `accuracy_score` of scikit-learn.
"""

from nlpkit.contracts.metric import Lines, References, Score
from nlpkit.score.counts import labels
from nlpkit.score.counts.means import LineMean


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
    signature = f"classes:{len(read.known)}"
    return Score("accuracy", correct / lines, signature, verbose, details, percent=False)


def _values(hypotheses: Lines, references: References) -> list[bool]:
    read = labels.read(hypotheses, references)
    return list(map(str.__eq__, read.predicted, read.right))


_MEAN = LineMean("accuracy", _values)
sentences, statistics, from_sums = _MEAN.sentences, _MEAN.statistics, _MEAN.from_sums
