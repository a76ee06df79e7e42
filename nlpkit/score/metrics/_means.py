"""Means over lines, and integer sums from which a resampled mean is computed.

The score of a line is stored as an integer in units of 2**-40 (error below 1e-12). Sums of eight
million lines still fit in 64 bits.
"""

import math
from collections.abc import Sequence

from nlpkit.errors import DataError

_UNIT = 1 << 40


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed without rounding errors; raise `DataError` if there is no value."""
    if not values:
        raise DataError("there is no line to score")
    return math.fsum(values) / len(values)


def statistics_of(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return a row (value in units of 2**-40, 1) for each line's value."""
    return [(round(value * _UNIT), 1) for value in values]


def mean_of_sums(sums: Sequence[int]) -> float:
    """Return the mean from the sums of these rows."""
    return int(sums[0]) / _UNIT / int(sums[1])
