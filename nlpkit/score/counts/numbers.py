"""Reading one number from each line, and computing correlations."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import correlation

from nlpkit.contracts.metric import BadLine, Lines, References
from nlpkit.errors import DataError

# float() also accepts nan, inf, 1_000 and the digits of other scripts.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def read(lines: Lines, file: int) -> list[float]:
    """Return the numbers; raise `BadLine` where there is not exactly one finite number."""
    numbers = []
    for i, line in enumerate(lines):
        text = line.strip()
        number = float(text) if NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(number):
            shown = repr(text[:40]) if text else "an empty line"
            raise BadLine(file, i, f"{shown}; there must be one finite number in every line")
        numbers.append(number)
    return numbers


def read_pairs(hypotheses: Lines, references: References) -> tuple[list[float], list[float]]:
    """Return the numbers of both files; raise `DataError` if the correlation is undefined."""
    x, y = read(hypotheses, 0), read(references[0], 1)
    if len(x) < 2:
        raise DataError(f"a correlation needs at least two lines, there is {len(x)}")
    for name, side in (("hypotheses", x), ("references", y)):
        if min(side) == max(side):
            what = f"all {len(side)} numbers of the {name} are {side[0]:g}"
            raise DataError(f"undefined correlation: {what}")
    return x, y


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Pearson's correlation; neither side may be constant."""
    return max(-1.0, min(1.0, correlation(_scale(x), _scale(y))))


def _scale(values: Sequence[float]) -> list[float]:
    """Return the values divided by a power of two: no digit is lost, and no square overflows."""
    _, exponent = math.frexp(max(map(abs, values)))
    return [math.ldexp(v, -exponent) for v in values]


def double_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 2; equal values get the mean of their ranks."""
    ordered = sorted(values)
    return [bisect_left(ordered, v) + bisect_right(ordered, v) + 1 for v in values]
