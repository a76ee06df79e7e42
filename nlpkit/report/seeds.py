"""Runs with different seeds: mean and deviation of their figures, and whether two settings differ.

The interval of a difference is Welch's (1947, "The generalization of 'Student's' problem when
several different population variances are involved"), which Colas et al. 2019 (arXiv:1904.06979)
recommend for comparing training runs. It needs no pairs: seeds may differ in number and value.
Where equal seeds have results that rise and fall together, it is wider than an interval of paired
differences, so it does not find more differences than there are.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from nlpkit.json_types import JsonObject

LEVEL = 0.95


def summary(seeds: Sequence[int], figures: Sequence[Mapping[str, float | None]]) -> JsonObject:
    """Return what `summarize` says of each figure; a figure may be missing for a seed."""
    names = dict.fromkeys(name for figure in figures for name in figure)
    found = {name: summarize([figure.get(name) for figure in figures]) for name in names}
    return {"seeds": list(seeds), "figures": found}


def summarize(values: Sequence[float | None]) -> JsonObject:
    """Return mean, median, sample deviation and values; without a value, the first three are None.

    The deviation of one value is None, too.
    """
    known = [value for value in values if value is not None]
    complete = bool(known) and len(known) == len(values)
    return {
        "mean": statistics.fmean(known) if complete else None,
        "median": statistics.median(known) if complete else None,
        "std": statistics.stdev(known) if complete and len(known) > 1 else None,
        "values": [*values],
    }


def format_mean(figure: JsonObject, digits: int) -> str:
    """Return what `summarize` has found as mean ± deviation."""
    if figure["mean"] is None:
        return "–"
    deviation = "" if figure["std"] is None else f" ± {figure['std']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{deviation}"


def table(result: JsonObject) -> str:
    """Return the result of `summary` as tab-separated lines, one for each figure."""
    head = ["figure", "mean", "median", "std", *(f"seed {seed}" for seed in result["seeds"])]
    lines = ["\t".join(head)]
    for name, row in result["figures"].items():
        values = [row["mean"], row["median"], row["std"], *row["values"]]
        shown = ("undefined" if value is None else f"{value:.4f}" for value in values)
        lines.append("\t".join([name, *shown]))
    return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """`other` minus `first`: the difference of their means, its interval and its p-value.

    `counts` are of seeds or rows, `test` is Welch, Student or paired t. `interval` and `p` are None
    if one of the two has only one value: its deviation is not known.
    """

    means: tuple[float, float]
    counts: tuple[int, int]
    test: str
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def difference(self) -> float:
        """The second mean minus the first one."""
        return self.means[1] - self.means[0]

    @property
    def verdict(self) -> str:
        """`differ`, `no difference seen`, or `too few seeds`: fewer than two on a side."""
        if self.interval is None:
            return "too few seeds"
        return "no difference seen" if self.interval[0] <= 0 <= self.interval[1] else "differ"

    def format_interval(self) -> str:
        """Return the interval, which is known, as text."""
        return "95 % interval {:+.4f} to {:+.4f}".format(*self.interval or ())


def compare(first: Sequence[float], other: Sequence[float]) -> Difference:
    """Return the difference of the means of two settings; a value is the figure of one seed.

    The figure may be a loss, a score of a task or an accuracy on pairs. Assumed are independent
    seeds with values that are about normal. The interval covers what seeds change, on the held-out
    rows as they are, not the choice of these rows.

    It is Welch's, or Student's (of equal deviations) where that is wider, which it can be with
    unequal numbers of seeds alone: two seeds that are close by chance have hardly a deviation, and
    Welch's takes their error for that of the other side (measured: docs/lab/seeds.md).
    """
    # Exact: fmean of equal values may depend on their number, as that of 0.7 does.
    means = statistics.mean(first), statistics.mean(other)
    counts = len(first), len(other)
    if min(counts) < 2:
        return Difference(means, counts, "Welch")
    sides = statistics.stdev(first), statistics.stdev(other)
    errors = [side / math.sqrt(count) for side, count in zip(sides, counts, strict=True)]
    error = math.hypot(*errors)  # the squares of perplexities may be no floats
    shares = [(each / (error or 1)) ** 4 for each in errors]
    below = sum(share / (n - 1) for share, n in zip(shares, counts, strict=True))
    welch = _find_interval(means, counts, "Welch", error, 1 / (below or 1))
    if counts[0] == counts[1]:  # Student's has the same error, and more degrees of freedom
        return welch
    of_both = sum(counts) - 2
    of_each = (side * math.sqrt((n - 1) / of_both) for side, n in zip(sides, counts, strict=True))
    error = math.hypot(*of_each) * math.sqrt(sum(1 / n for n in counts))
    student = _find_interval(means, counts, "Student", error, of_both)
    return max(welch, student, key=lambda each: (each.interval or (0, 0))[1])


def compare_pairs(first: Sequence[float], other: Sequence[float]) -> Difference:
    """Return the difference of the means of two models on the same rows, at least two of them.

    The paired t-test of the rows' differences. Assumed are rows that are independent of each other,
    and so many of them that their mean is about normal. It covers the choice of the rows, not what
    another seed would change.
    """
    means = statistics.fmean(first), statistics.fmean(other)
    apart = [two - one for one, two in zip(first, other, strict=True)]
    error, rows = statistics.stdev(apart) / math.sqrt(len(apart)), len(apart)
    return _find_interval(means, (rows, rows), "paired t", error, rows - 1)


def permute(first: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return p that `first` is larger, p that it is smaller, and the least p there can be.

    The exact permutation test: of all ways to split the figures of both into two groups of their
    sizes, p is the share in which the first group's mean is at least as far above the second's as
    here. If a value is not a number it is less than every other, and ranks take the values' place.
    """
    values = [*first, *other]
    if any(map(math.isnan, values)):
        known = [-math.inf if math.isnan(value) else value for value in values]
        order = sorted(known)
        values = [order.index(value) + (order.count(value) - 1) / 2 for value in known]
    sums = [math.fsum(group) for group in combinations(values, len(first))]
    reached, slack = math.fsum(values[: len(first)]), 1e-9 * max(1, *map(abs, values))
    above = sum(each >= reached - slack for each in sums)
    below = sum(each <= reached + slack for each in sums)
    return above / len(sums), below / len(sums), 1 / len(sums)


def _find_interval(
    means: tuple[float, float], counts: tuple[int, int], test: str, error: float, freedom: float
) -> Difference:
    """Return the difference, whose standard error and degrees of freedom are given."""
    difference = means[1] - means[0]
    if error == 0:  # every value of both is the same
        return Difference(means, counts, test, (difference, difference), float(difference == 0))
    reach = t_quantile(1 - LEVEL, freedom) * error
    p = both_tails(difference / error, freedom)
    return Difference(means, counts, test, (difference - reach, difference + reach), p)


def both_tails(t: float, freedom: float) -> float:
    """Return the probability that Student's t is at least as far from 0 as `t`."""
    import mpmath

    x = freedom / (freedom + t * t)
    return float(mpmath.betainc(freedom / 2, 0.5, 0, x, regularized=True))


def t_quantile(share: float, freedom: float) -> float:
    """Return the `t` whose `both_tails` are this share."""
    import mpmath

    high = 1.0
    while both_tails(high, freedom) > share:
        high *= 2
    # In the logarithm it is nearly straight.
    found = mpmath.findroot(
        lambda t: math.log(both_tails(float(t), freedom) / share), (0, high), solver="anderson"
    )
    return float(found)
