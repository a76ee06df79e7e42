"""Matthews correlation coefficient of two or more classes.

Each line has one label. The score is -1...1; for many classes: Gorodkin 2004, "Comparing two
K-category assignments by a K-category correlation coefficient", eq. 8. As `matthews_corrcoef` of
scikit-learn, it is 0, with a warning, if one file has a single class.
"""

import math
from collections.abc import Iterator, Sequence

from nlpkit.contracts.metric import Lines, References, Score, Sums
from nlpkit.plural import number_of
from nlpkit.score.counts import labels


def score(hypotheses: Lines, references: References) -> Score:
    """Return the correlation of the predicted with the right labels."""
    read = labels.read(hypotheses, references)
    warnings = labels.find_never_right(read)
    for side, name in ((read.predicted, "predicted"), (read.right, "right")):
        if len(set(side)) == 1:
            warnings.append(f"undefined, set to 0: the only {name} label is {side[0]}")
    details = {"lines": len(read.right), "classes": len(read.known), "warnings": warnings}
    value = _correlation(labels.count(read, read.known))
    verbose = number_of(len(read.right), "lines")
    signature = f"classes:{len(read.known)}"
    return Score("MCC", value, signature, verbose, details, percent=False)


def statistics(hypotheses: Lines, references: References) -> Iterator[tuple[int, ...]]:
    """Yield for each line three numbers for every class (see `labels.make_rows`)."""
    read = labels.read(hypotheses, references)
    return labels.make_rows(read, read.known)


def from_sums(sums: Sums) -> float:
    """Return the coefficient."""
    return _correlation(labels.read_row(sums))


def _correlation(classes: Sequence[labels.Counts]) -> float:
    """Return cov(x, y) / sqrt(cov(x, x) cov(y, y)), computed in integers before the division."""
    lines = sum(c.right for c in classes)
    correct = sum(c.both for c in classes)
    covariance = correct * lines - sum(c.predicted * c.right for c in classes)
    of_predicted = lines**2 - sum(c.predicted**2 for c in classes)
    of_right = lines**2 - sum(c.right**2 for c in classes)
    if not of_predicted or not of_right:
        return 0.0
    return covariance / math.sqrt(of_predicted * of_right)
