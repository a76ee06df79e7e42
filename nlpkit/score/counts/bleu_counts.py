"""The counts of BLEU for a line: clipped n-gram matches, numbers of n-grams, and lengths."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

ORDER = 4  # the length of the longest n-grams (Papineni et al. 2002, section 2.1.2)

_GRAMS: tuple[Callable[[list[str]], Iterable[object]], ...] = (
    lambda t: t,
    pairwise,
    lambda t: zip(t, t[1:], t[2:], strict=False),
    lambda t: zip(t, t[1:], t[2:], t[3:], strict=False),
)


def count_row(hypothesis: list[str], references: list[list[str]]) -> tuple[int, ...]:
    """Return hypothesis length, closest reference length, matches 1 … 4, totals 1 … 4."""
    length = len(hypothesis)
    closest = min((abs(length - len(r)), len(r)) for r in references)[1]
    totals = (length, max(length - 1, 0), max(length - 2, 0), max(length - 3, 0))
    return length, closest, *count_matches(hypothesis, references), *totals


def count_matches(hypothesis: list[str], references: list[list[str]]) -> list[int]:
    """Return the clipped matches of 1- … 4-grams (Papineni et al. 2002, section 2.1)."""
    matched = [0] * ORDER
    repeats = True
    for order, grams in enumerate(_GRAMS):
        in_references = set().union(*map(grams, references))
        hits = list(filter(in_references.__contains__, grams(hypothesis)))
        if not hits:
            break
        matched[order] = len(hits)
        if repeats:
            distinct = set(hits)
            # An n-gram cannot repeat if no shorter one did.
            repeats = len(distinct) < len(hits)
            if repeats:
                matched[order] = len(distinct) + _count_repeats(hits, references, grams)
    return matched


def _count_repeats(
    hits: list[object],
    references: list[list[str]],
    grams: Callable[[list[str]], Iterable[object]],
) -> int:
    """Return the clipped matches in `hits` that repeat an earlier n-gram."""
    repeated = {gram: count for gram, count in Counter(hits).items() if count > 1}
    # One `list.count` for each n-gram would be quadratic in the length of the line.
    counts = [Counter(filter(repeated.__contains__, grams(line))) for line in references]
    return sum(
        min(count, max(reference[gram] for reference in counts)) - 1
        for gram, count in repeated.items()
    )
