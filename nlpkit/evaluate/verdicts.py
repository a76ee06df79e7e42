"""Whether an expectation about two conditions holds, by a rule that is fixed before the first run.

"A is better than B": the exact permutation test over seeds. Of all ways to split the figures of
both into two groups of their sizes, p is the share in which the first group's mean is at least as
far above the second's as A's is above B's. A run that diverged is worse than every other.
"A is the same as B within x": the interval of the difference lies between -x and x times B's mean.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from nlpkit.evaluate.experiment import Expectation, Rule
from nlpkit.json_types import JsonObject
from nlpkit.report import seeds

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
NO_DIFFERENCE, TOO_FEW = "no difference seen", "too few seeds"


def judge(
    expectation: Expectation, rule: Rule, first: Sequence[float], other: Sequence[float], sign: int
) -> JsonObject:
    """Return the verdict on figures of seeds, of which those of diverged runs are not numbers.

    With it come the difference of the means in favour of the first side, its interval and p, each
    None if it is unknown, and all as text. With a `sign` of -1 the lower figure is the better one.
    """
    found = p = None
    first, other = ([sign * value for value in side] for side in (first, other))
    diverged = any(map(math.isnan, (*first, *other)))
    if min(len(first), len(other)) < 2:
        verdict = TOO_FEW
    else:
        found = None if diverged else seeds.compare(other, first)
        if expectation.within is not None:
            verdict = _judge_same(expectation.within, found)
        else:
            ranks = _rank([*first, *other]) if diverged else [*first, *other]
            p, reverse, least = _permute(ranks, len(first))
            verdict = REPRODUCED if p <= rule.level else NO_DIFFERENCE
            verdict = NOT_REPRODUCED if reverse <= rule.level else verdict
            verdict = TOO_FEW if least > rule.level else verdict
    said = [] if found is None else [f"{found.difference:+.4f}", found.format_interval()]
    said += [] if p is None else [f"p = {p:.2g}"]
    return {
        "verdict": verdict,
        "difference": None if found is None else found.difference,
        "p": p,
        "interval": None if found is None else found.interval,
        "text": verdict + (f" ({'; '.join(said)})" if said else ""),
    }


def _judge_same(within: float, found: seeds.Difference | None) -> str:
    if found is None:  # a run diverged
        return NOT_REPRODUCED
    assert found.interval is not None
    low, high = found.interval
    reach = within * abs(found.means[0])
    if -reach <= low and high <= reach:
        return REPRODUCED
    return NOT_REPRODUCED if low > reach or high < -reach else TOO_FEW


def _rank(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, those that are not a number lowest; equal ones share it."""
    known = [-math.inf if math.isnan(value) else value for value in values]
    order = sorted(known)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in known]


def _permute(values: Sequence[float], size: int) -> tuple[float, float, float]:
    """Return p of the first `size` values, that of the opposite, and the least p there can be."""
    sums = [math.fsum(group) for group in combinations(values, size)]
    reached, slack = math.fsum(values[:size]), 1e-9 * max(1, *map(abs, values))
    above = sum(each >= reached - slack for each in sums)
    below = sum(each <= reached + slack for each in sums)
    return above / len(sums), below / len(sums), 1 / len(sums)
