"""Spearman rank correlation of two columns of numbers.

Each line has one number. The score is -1...1, as `scipy.stats.spearmanr`; equal numbers get the
mean of their ranks. Differs from SciPy: a constant column is an error, not nan.
"""

from nlpkit.contracts.metric import Lines, References, Score
from nlpkit.score.counts import numbers


def score(hypotheses: Lines, references: References) -> Score:
    """Return rho; raise `DataError` if it is undefined, `BadLine` for a line without a number."""
    x, y = numbers.read_pairs(hypotheses, references)
    lines = len(x)
    value = numbers.pearson(numbers.double_ranks(x), numbers.double_ranks(y))
    ties = lines - len(set(x)), lines - len(set(y))
    details = {"lines": lines, "ties_in_hypotheses": ties[0], "ties_in_references": ties[1]}
    signature = f"n:{lines}|ties:mean"
    return Score("Spearman", value, signature, "", details, percent=False)
