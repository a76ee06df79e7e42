"""What BLEU counts of a line: clipped matches of n-grams, their totals, and the lengths."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import add

ORDER = 4  # of the longest n-grams (Papineni et al. 2002, section 2.1.2)
COLUMNS = 2 + 2 * ORDER

_GRAMS: tuple[Callable[[list[str]], Iterable[object]], ...] = (
    lambda t: t,
    pairwise,
    lambda t: zip(t, t[1:], t[2:], strict=False),
    lambda t: zip(t, t[1:], t[2:], t[3:], strict=False),
)


def row_of(hypothesis: list[str], references: list[list[str]]) -> tuple[int, ...]:
    """Return hypothesis length, closest reference length, matches 1 … 4, totals 1 … 4."""
    length = len(hypothesis)
    closest = min((abs(length - len(r)), len(r)) for r in references)[1]
    totals = (length, max(length - 1, 0), max(length - 2, 0), max(length - 3, 0))
    return length, closest, *matches(hypothesis, references), *totals


def matches(hypothesis: list[str], references: list[list[str]]) -> list[int]:
    """Return how many 1- … 4-grams match, each at most as often as in any single reference."""
    found = [0] * ORDER
    repeats = True
    for order, grams in enumerate(_GRAMS):
        known = set().union(*map(grams, references))
        hits = list(filter(known.__contains__, grams(hypothesis)))
        if not hits:
            break
        found[order] = len(hits)
        if repeats:
            distinct = set(hits)
            # An n-gram cannot repeat if no shorter one did.
            repeats = len(distinct) < len(hits)
            if repeats:
                found[order] = len(distinct) + _more(hits, references, grams)
    return found


def _more(
    hits: list[object],
    references: list[list[str]],
    grams: Callable[[list[str]], Iterable[object]],
) -> int:
    """Return how many of `hits` match beyond the first of their kind."""
    repeated = {gram: count for gram, count in Counter(hits).items() if count > 1}
    # Counted together: one `list.count` a kind would be quadratic in the length of the line.
    counts = [Counter(filter(repeated.__contains__, grams(line))) for line in references]
    return sum(
        min(count, max(known[gram] for known in counts)) - 1 for gram, count in repeated.items()
    )


def sum_rows(rows: Iterator[tuple[int, ...]]) -> list[int]:
    """Return the sums of the columns."""
    sums = [0] * COLUMNS
    for row in rows:
        sums = list(map(add, sums, row))
    return sums
