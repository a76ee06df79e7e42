"""Whether an expectation about two conditions holds, by a rule that is fixed before the first run.

"A is better than B": the exact permutation test over seeds. Of all ways to split the figures of
both into two groups of their sizes, p is the share in which the first group's mean is at least as
far above the second's as A's is above B's. A run that diverged is worse than every other.
"A is the same as B within x": the interval of the difference lies between -x and x times B's mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from nlpkit.evaluate.experiment import Expectation, Rule
from nlpkit.json_types import JsonObject
from nlpkit.report import seeds

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
NO_DIFFERENCE, TOO_FEW = "no difference seen", "too few seeds"
DIVERGED = math.nan


@dataclass(frozen=True)
class Verdict:
    """What the figures say; `found` is the difference of the means in favour of the first side."""

    verdict: str
    found: seeds.Difference | None = None
    p: float | None = None

    @property
    def difference(self) -> float | None:
        """The difference of the means; None if a run diverged, or there are too few."""
        return None if self.found is None else self.found.difference

    def to_json(self) -> JsonObject:
        """Return it as plain data."""
        interval = None if self.found is None else [self.found.low, self.found.high]
        return {
            "verdict": self.verdict,
            "difference": self.difference,
            "p": self.p,
            "interval": interval,
        }

    def __str__(self) -> str:
        said = []
        if (found := self.found) is not None:
            said.append(f"{found.difference:+.4f}")
            said.append(f"95 % interval {found.low:+.4f} to {found.high:+.4f}")
        if self.p is not None:
            said.append(f"p = {self.p:.2g}")
        return self.verdict + (f" ({'; '.join(said)})" if said else "")


def judge(
    expectation: Expectation, rule: Rule, first: Sequence[float], other: Sequence[float], sign: int
) -> Verdict:
    """Return the verdict on figures of seeds, DIVERGED for a run that did; `sign` is 1 or -1.

    With -1 the lower figure is the better one.
    """
    if min(len(first), len(other)) < 2:
        return Verdict(TOO_FEW)
    first, other = ([sign * value for value in side] for side in (first, other))
    found = None
    if any(map(math.isnan, (*first, *other))):
        if expectation.same:
            return Verdict(NOT_REPRODUCED)
        ranks = _rank([*first, *other])
        first, other = ranks[: len(first)], ranks[len(first) :]
    else:
        found = seeds.compare(other, first)
        if expectation.within is not None:
            return _judge_same(expectation.within * abs(found.means[0]), found)
    p, reverse, least = _permute(first, other)
    verdict = REPRODUCED if p <= rule.level else NO_DIFFERENCE
    verdict = NOT_REPRODUCED if reverse <= rule.level else verdict
    return Verdict(TOO_FEW if least > rule.level else verdict, found, p)


def _judge_same(reach: float, found: seeds.Difference) -> Verdict:
    assert found.low is not None
    assert found.high is not None
    verdict = TOO_FEW
    if -reach <= found.low and found.high <= reach:
        verdict = REPRODUCED
    elif found.low > reach or found.high < -reach:
        verdict = NOT_REPRODUCED
    return Verdict(verdict, found)


def _rank(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, those that are not a number lowest; equal ones share it."""
    known = [-math.inf if math.isnan(value) else value for value in values]
    order = sorted(known)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in known]


def _permute(first: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return p, that of the opposite, and the least p that so many seeds can have."""
    values, size = [*first, *other], len(first)
    sums = [math.fsum(group) for group in combinations(values, size)]
    reached, slack = math.fsum(first), 1e-9 * max(1, *map(abs, values))
    above = sum(each >= reached - slack for each in sums)
    below = sum(each <= reached + slack for each in sums)
    return above / len(sums), below / len(sums), 1 / len(sums)
