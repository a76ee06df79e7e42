"""Summarizes runs with different seeds: mean and standard deviation of their figures."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nlpkit.errors import DataError
from nlpkit.report.history import read_evaluations
from nlpkit.train.state import LOSS, best_step


def best_evaluation(run: Path, best_by: str = LOSS) -> dict[str, float]:
    """Return the figures of a run's best evaluation: `loss` and its scores.

    If `best_by` is undefined in all evaluations, the figures of the last one are returned.

    Raises:
        DataError: the run has no evaluation.
    """
    evaluations = read_evaluations(run)
    if not evaluations:
        raise DataError(f"{run}: no evaluation; set data.valid")
    step = best_step(evaluations, best_by)
    figures = evaluations[max(evaluations) if step is None else step]
    return {LOSS: figures[LOSS]} | figures["metrics"]


def summary(seeds: Sequence[int], figures: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the mean, median, sample standard deviation and values per seed of each figure.

    The first three are None if the figure is undefined or missing for a seed.
    """
    result: dict[str, Any] = {"seeds": list(seeds), "figures": {}}
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


def table(result: dict[str, Any]) -> str:
    """Return the result of `summary` as tab-separated lines, one for each figure."""
    head = ["figure", "mean", "median", "std", *(f"seed {seed}" for seed in result["seeds"])]
    lines = ["\t".join(head)]
    for name, row in result["figures"].items():
        values = [row["mean"], row["median"], row["std"], *row["values"]]
        lines.append("\t".join([name, *map(_shown, values)]))
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
