"""Spearman rank correlation of two columns of numbers.

Each line has one number. The score is -1...1, as `scipy.stats.spearmanr`; equal numbers get the
mean of their ranks. Differs from SciPy: a constant column is an error, not nan.
"""

import math

from nlpkit.contracts.metric import Lines, References, Score
from nlpkit.score.counts import numbers


def score(hypotheses: Lines, references: References) -> Score:
    """Return rho; raise `DataError` if it is undefined, `BadLine` for a line without a number."""
    x, y = numbers.read_pairs(hypotheses, references)
    lines = len(x)
    # Doubled ranks are integers, and their mean is lines + 1: no rounding before the division.
    a = [rank - lines - 1 for rank in numbers.double_ranks(x)]
    b = [rank - lines - 1 for rank in numbers.double_ranks(y)]
    covariance = sum(map(int.__mul__, a, b))
    value = covariance / math.sqrt(sum(v * v for v in a) * sum(v * v for v in b))
    ties = lines - len(set(x)), lines - len(set(y))
    details = {"lines": lines, "ties_in_hypotheses": ties[0], "ties_in_references": ties[1]}
    signature = f"n:{lines}|ties:mean"
    return Score("Spearman", value, signature, "", details, percent=False)
