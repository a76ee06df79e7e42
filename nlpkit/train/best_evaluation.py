"""Selects the best evaluation of a run: the one with the lowest loss or the highest score.

`figures` are the numbers of an evaluation, as in metrics.jsonl under `held_out`: `loss`, and the
scores of a task in `metrics`. Imports no torch.
"""

import math
from collections.abc import Mapping
from typing import Any

LOSS = "loss"  # the default of `train.best_by`


def value(figures: Mapping[str, Any], best_by: str) -> float | None:
    """Return the loss or the score `best_by`; None if it is undefined."""
    figure = figures[LOSS] if best_by == LOSS else (figures.get("metrics") or {}).get(best_by)
    return figure if figure is not None and math.isfinite(figure) else None


def is_better(value: float | None, best: float | None, best_by: str) -> bool:
    """Return whether `value` is better than `best`; an undefined value is never better."""
    if value is None or best is None:
        return value is not None
    return value < best if best_by == LOSS else value > best


def best_step(evaluations: Mapping[int, Mapping[str, Any]], best_by: str) -> int | None:
    """Return the step of the (first) best evaluation, or None if all are undefined.

    `evaluations` are figures by step, in the order of the run.
    """
    chosen, best = None, None
    for step, figures in evaluations.items():
        current = value(figures, best_by)
        if is_better(current, best, best_by):
            chosen, best = step, current
    return chosen
