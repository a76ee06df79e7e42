"""Pearson correlation of two columns of numbers.

Each line has one number. The score is -1...1, as `scipy.stats.pearsonr`. Differs from SciPy: a
constant column is an error, not nan.
"""

from nlpkit.contracts.metric import Lines, References, Score
from nlpkit.score.counts import numbers


def score(hypotheses: Lines, references: References) -> Score:
    """Return r; raise `DataError` if it is undefined, `BadLine` for a line without a number."""
    x, y = numbers.read_pairs(hypotheses, references)
    lines = len(x)
    value = numbers.pearson(x, y)
    return Score("Pearson", value, f"n:{lines}", "", {"lines": lines}, percent=False)
