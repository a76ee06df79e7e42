"""Means over lines, and sums that decide them exactly enough to be resampled.

`statistics` must be integers; a line's fraction is kept in units of 2**-40 (error below 1e-12),
so that sums of eight million lines still fit 64 bits.
"""

import math
from collections.abc import Sequence

from nlpkit.errors import DataError

_UNIT = 1 << 40


def mean(values: Sequence[float]) -> float:
    """Return the mean, the sum without rounding errors; raise `DataError` if there is no value."""
    if not values:
        raise DataError("there is no line to score")
    return math.fsum(values) / len(values)


def statistics_of(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return a row (fraction in units of 2**-40, 1) for each line's fraction."""
    return [(round(value * _UNIT), 1) for value in values]


def mean_of_sums(sums: Sequence[int]) -> float:
    """Return the mean that sums of such rows decide."""
    return int(sums[0]) / _UNIT / int(sums[1])
