"""What word and character error rate share: edits by the length of the reference."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nlpkit.errors import DataError
from nlpkit.score.contract import Score
from nlpkit.score.metrics._edits import Edits, edits

Pair = tuple[Sequence[str], Sequence[str]]  # tokens of the hypothesis, of the reference


def corpus(name: str, unit: str, pairs: Iterable[Pair], signature: str) -> Score:
    """Return the rate over all lines, the kinds of edit in `details`."""
    total, length, lines, right, empty = Edits(0, 0, 0, 0), 0, 0, 0, 0
    for hypothesis, reference in pairs:
        found = edits(reference, hypothesis)
        total = Edits(*map(int.__add__, total, found))
        length += len(reference)
        lines += 1
        right += not found.distance
        empty += not reference
    if not length:
        raise DataError(f"{name} is undefined: the references have no {unit} ({lines} lines)")
    warnings = []
    if empty:
        noun = "line has" if empty == 1 else "lines have"
        warnings.append(f"{empty} {noun} an empty reference; what is inserted there counts")
    ours = total.hits + total.substitutions + total.insertions
    details: dict[str, Any] = {
        **total._asdict(),
        f"reference_{unit}": length,
        f"hypothesis_{unit}": ours,
        "ratio": ours / length,
        "lines": lines,
        "lines_without_error": right,
        "warnings": warnings,
    }
    return Score(name, total.distance / length, signature, _kinds(total, length), details, False)


def lines(name: str, unit: str, pairs: Iterable[Pair], signature: str) -> Iterator[Score]:
    """Yield the rate of each line; one with an empty reference is divided by 1, as jiwer does."""
    for hypothesis, reference in pairs:
        found = edits(reference, hypothesis)
        value = found.distance / max(1, len(reference))
        details = {**found._asdict(), f"reference_{unit}": len(reference)}
        verbose = _kinds(found, len(reference))
        yield Score(name, value, signature, verbose, details, percent=False)


def statistics(pairs: Iterable[Pair]) -> list[tuple[int, int]]:
    """Return a row a line: edits, length of the reference."""
    return [(edits(ref, hyp).distance, len(ref)) for hyp, ref in pairs]


def rate(distance: int, length: int) -> float:
    """Return edits by length, a resample of empty references alone divided by 1."""
    return distance / max(1, length)


def _kinds(found: Edits, length: int) -> str:
    parts = f"S {found.substitutions} D {found.deletions} I {found.insertions}"
    return f"{parts} of {length}"
