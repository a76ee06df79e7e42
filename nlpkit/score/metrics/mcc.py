"""Matthews correlation coefficient of two or more classes.

Each line has one label. The score is -1...1; for many classes: Gorodkin 2004, "Comparing two
K-category assignments by a K-category correlation coefficient", eq. 8. As `matthews_corrcoef` of
scikit-learn, it is 0, with a warning, if one file has a single class.
"""

import math
from collections.abc import Iterator, Sequence

from nlpkit.plural import number_of
from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _labels
from nlpkit.score.metrics._labels import Counts

REFERENCES = (1, 1)
OPTIONS: tuple[Option, ...] = ()


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return the correlation of the predicted with the right labels."""
    labels = _labels.read(hypotheses, references)
    warnings = _labels.warnings(labels)
    for side, name in ((labels.predicted, "predicted"), (labels.right, "right")):
        if len(set(side)) == 1:
            warnings.append(f"undefined, taken as 0: the only {name} label is {side[0]}")
    details = {"lines": len(labels.right), "classes": len(labels.known), "warnings": warnings}
    value = _correlation(_labels.count(labels, labels.known))
    verbose = number_of(len(labels.right), "lines")
    signature = f"classes:{len(labels.known)}"
    return Score("MCC", value, signature, verbose, details, percent=False)


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every class (see `_labels.rows`)."""
    labels = _labels.read(hypotheses, references)
    return _labels.rows(labels, labels.known)


def from_sums(sums: Sequence[int], **_options: object) -> float:
    """Return the coefficient."""
    return _correlation(_labels.from_row(sums))


def _correlation(classes: Sequence[Counts]) -> float:
    """Return cov(x, y) / sqrt(cov(x, x) cov(y, y)), computed in integers before the division."""
    lines = sum(c.right for c in classes)
    correct = sum(c.both for c in classes)
    covariance = correct * lines - sum(c.predicted * c.right for c in classes)
    of_predicted = lines**2 - sum(c.predicted**2 for c in classes)
    of_right = lines**2 - sum(c.right**2 for c in classes)
    if not of_predicted or not of_right:
        return 0.0
    return covariance / math.sqrt(of_predicted * of_right)
