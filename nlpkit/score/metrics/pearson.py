"""Pearson correlation of two columns of numbers.

One number a line, -1...1. As `scipy.stats.pearsonr`, but that a constant column is an error and
not a quiet nan.
"""

from collections.abc import Sequence

from nlpkit.score.contract import Option, Score
from nlpkit.score.metrics import _numbers

REFERENCES = (1, 1)
OPTIONS: tuple[Option, ...] = ()


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return r; raise `DataError` if it is undefined, `BadLine` for what is no number."""
    ours, theirs = _numbers.read_pairs(hypotheses, references)
    lines = len(ours)
    value = _numbers.pearson(ours, theirs)
    return Score("Pearson", value, f"n:{lines}", "", {"lines": lines}, percent=False)
