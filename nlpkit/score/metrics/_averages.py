"""Precision, recall and F1 of classes, and their averages, from counts."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nlpkit.score.metrics._labels import Counts


class Part(NamedTuple):
    """Precision, recall and F1."""

    precision: float
    recall: float
    f1: float


def part(c: Counts) -> Part:
    """Return precision, recall and F1 of a class; 0 where the divisor is 0."""
    return Part(_ratio(c.both, c.predicted), _ratio(c.both, c.right), _f1(c))


def _f1(c: Counts) -> float:
    return _ratio(2 * c.both, c.predicted + c.right)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def average(classes: Sequence[Counts], how: str) -> Part:
    """Return macro, micro, weighted or binary averages; absent classes do not count."""
    if how in ("micro", "binary") and classes:
        # Binary is the sum over one class.
        return part(Counts(*(sum(column) for column in zip(*classes, strict=True))))
    present = [c for c in classes if c.predicted or c.right]
    weights = [c.right if how == "weighted" else 1 for c in present]
    total, parts = sum(weights), [part(c) for c in present]
    if not total:
        return Part(0.0, 0.0, 0.0)
    return Part(
        *(
            math.fsum(w * one[k] for w, one in zip(weights, parts, strict=True)) / total
            for k in range(3)
        )
    )


def undefined(table: Mapping[str, Counts]) -> list[str]:
    """Return a warning that names the classes that are never predicted."""
    never = [name for name, c in table.items() if not c.predicted]
    if not never:
        return []
    names = ", ".join(never[:5]) + (", ..." if len(never) > 5 else "")
    return [f"never predicted, so precision is taken as 0: {names}"]


def rows(table: Mapping[str, Counts]) -> str:
    """Return a table of text with a line for each class."""
    width = max(5, *map(len, table))
    lines = [f"{'class':<{width}} precision recall     f1 support"]
    for name, c in table.items():
        precision, recall, f1 = part(c)
        lines.append(f"{name:<{width}} {precision:9.4f} {recall:6.4f} {f1:6.4f} {c.right:7d}")
    return "\n".join(lines)
