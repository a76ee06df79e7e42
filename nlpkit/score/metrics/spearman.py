"""Spearman rank correlation of two columns of numbers.

One number a line, -1...1; equal numbers share the mean of their ranks. As `scipy.stats.spearmanr`,
but that a constant column is an error and not a quiet nan.
"""

import math
from collections.abc import Sequence

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _numbers

REFERENCES = (1, 1)
OPTIONS: tuple[Option, ...] = ()


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return rho; raise `DataError` if it is undefined, `BadLine` for what is no number."""
    ours, theirs = _numbers.read_pairs(hypotheses, references)
    lines = len(ours)
    # Twice a rank is whole and the mean of all is lines + 1: integers up to the division.
    a = [rank - lines - 1 for rank in _numbers.double_ranks(ours)]
    b = [rank - lines - 1 for rank in _numbers.double_ranks(theirs)]
    covariance = sum(map(int.__mul__, a, b))
    value = covariance / math.sqrt(sum(v * v for v in a) * sum(v * v for v in b))
    ties = lines - len(set(ours)), lines - len(set(theirs))
    details = {"lines": lines, "ties_in_hypotheses": ties[0], "ties_in_references": ties[1]}
    signature = f"n:{lines}|ties:mean"
    return Score("Spearman", value, signature, "", details, percent=False)
