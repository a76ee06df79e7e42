"""Runs with different seeds: mean and deviation of their figures, and whether two settings differ.

The interval of a difference is Welch's (1947, "The generalization of 'Student's' problem when
several different population variances are involved"), which Colas et al. 2019 (arXiv:1904.06979)
recommend for comparing training runs. It needs no pairs: seeds may differ in number and value.
Where equal seeds have results that rise and fall together, it is wider than an interval of paired
differences, so it does not find more differences than there are. Two equal settings are called
different in 2 % (2 seeds each), 3 % (3 each) or 4 % (5 each) of draws, with 2 against 5 in 7 %.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject
from nlpkit.report.history import read
from nlpkit.train.state import LOSS, best_step

LEVEL = 0.95
_MAX_TERMS, _PRECISION = 10_000, 1e-15


def best_evaluation(run: Path, best_by: str = LOSS) -> dict[str, float]:
    """Return the figures of a run's best evaluation: `loss` and its scores.

    If `best_by` is undefined in all evaluations, the figures of the last one are returned.

    Raises:
        DataError: the run has no evaluation.
    """
    evaluations = read(run, str(run), may_be_empty=True).evaluations
    if not evaluations:
        raise DataError(f"{run}: no evaluation; set data.valid")
    step = best_step(evaluations, best_by)
    figures = evaluations[max(evaluations) if step is None else step]
    return {LOSS: figures[LOSS]} | figures["metrics"]


def summary(seeds: Sequence[int], figures: Sequence[Mapping[str, float | None]]) -> JsonObject:
    """Return the mean, median, sample standard deviation and values per seed of each figure.

    The first three are None if the figure is undefined or missing for a seed.
    """
    result: JsonObject = {"seeds": list(seeds), "figures": {}}
    for name in dict.fromkeys(name for figure in figures for name in figure):
        values = [figure.get(name) for figure in figures]
        known = [value for value in values if value is not None]
        complete = len(known) == len(values)
        several = complete and len(known) > 1
        result["figures"][name] = {
            "mean": statistics.fmean(known) if complete else None,
            "median": statistics.median(known) if complete else None,
            "std": statistics.stdev(known) if several else None,
            "values": values,
        }
    return result


def table(result: JsonObject) -> str:
    """Return the result of `summary` as tab-separated lines, one for each figure."""
    head = ["figure", "mean", "median", "std", *(f"seed {seed}" for seed in result["seeds"])]
    lines = ["\t".join(head)]
    for name, row in result["figures"].items():
        values = [row["mean"], row["median"], row["std"], *row["values"]]
        lines.append("\t".join([name, *map(_format_value, values)]))
    return "\n".join(lines)


def _format_value(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class Difference:
    """`other` minus `first`: the difference of their means, its interval and its p-value.

    The last three are None if one of the two has only one value: its deviation is not known.
    """

    means: tuple[float, float]
    counts: tuple[int, int]
    low: float | None
    high: float | None
    p: float | None

    @property
    def difference(self) -> float:
        """The second mean minus the first one."""
        return self.means[1] - self.means[0]

    @property
    def verdict(self) -> str:
        """`difference`, `no difference`, or `one seed cannot tell`."""
        if self.low is None or self.high is None:
            return "one seed cannot tell"
        return "no difference" if self.low <= 0 <= self.high else "difference"


def welch(first: Sequence[float], other: Sequence[float], level: float = LEVEL) -> Difference:
    """Return the difference of the means of two samples, with its interval at `level`."""
    means = statistics.fmean(first), statistics.fmean(other)
    counts = len(first), len(other)
    if min(counts) < 2:
        return Difference(means, counts, None, None, None)
    parts = [statistics.variance(values) / len(values) for values in (first, other)]
    difference, square = means[1] - means[0], sum(parts)
    if square == 0:  # every value of both is the same
        return Difference(means, counts, difference, difference, float(difference == 0))
    freedom = square**2 / sum(
        part**2 / (count - 1) for part, count in zip(parts, counts, strict=True)
    )
    error = math.sqrt(square)
    reach = t_quantile((1 + level) / 2, freedom) * error
    p = _both_tails(difference / error, freedom)
    return Difference(means, counts, difference - reach, difference + reach, p)


def t_cdf(t: float, freedom: float) -> float:
    """Return the probability that Student's t with so many degrees of freedom is at most `t`."""
    tail = _both_tails(t, freedom) / 2
    return 1 - tail if t > 0 else tail


def _both_tails(t: float, freedom: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(probability: float, freedom: float) -> float:
    """Return the `t` with this `t_cdf`, for a probability of at least one half."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b).

    The continued fraction 8.17.22 of dlmf.nist.gov, which converges fast below the mean of the
    distribution; above it, I_x(a, b) = 1 - I_{1-x}(b, a).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x)
    return math.exp(log + b * math.log1p(-x)) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    # By the method of Lentz (dlmf.nist.gov, 3.10).
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            result *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return result
