"""Scores that are the mean of a value of each line.

The value of a line is stored as an integer in units of 2**-40 (error below 1e-12), so that a
resampled mean is computed from integer sums. Sums of eight million lines still fit in 64 bits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from nlpkit.contracts.metric import Lines, References, Score, Sums
from nlpkit.errors import DataError

_UNIT = 1 << 40


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed without rounding errors; raise `DataError` if there is no value."""
    if not values:
        raise DataError("there is no line to score")
    return math.fsum(values) / len(values)


class LineMean(NamedTuple):
    """The functions of a metric by line; they pass `options` to `values` and `signature`."""

    name: str
    values: Callable[..., Iterable[float]]  # (hypotheses, references): the value of each line
    signature: Callable[..., str] = lambda *_, **_options: ""  # (number of references)

    def sentences(
        self, hypotheses: Lines, references: References, **options: object
    ) -> Iterator[Score]:
        """Yield the value of each line."""
        signature = self.signature(len(references), **options)
        for value in self.values(hypotheses, references, **options):
            yield Score(self.name, float(value), signature, percent=False)

    def statistics(
        self, hypotheses: Lines, references: References, **options: object
    ) -> list[tuple[int, int]]:
        """Return for each line its value as an integer, and 1."""
        values = self.values(hypotheses, references, **options)
        return [(round(value * _UNIT), 1) for value in values]

    def from_sums(self, sums: Sums, **_options: object) -> float:
        """Return the mean from the sums of these rows."""
        return int(sums[0]) / _UNIT / int(sums[1])
