"""The scores of a task's predictions, computed as `nlpkit score` does."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from nlpkit.contracts.task import Answer
from nlpkit.errors import DataError, UsageError
from nlpkit.score import named


def metrics_of_run(metrics: Sequence[str], pairs: Sequence[Answer]) -> dict[str, float | None]:
    """Return the scores of `eval.metrics`; raise `UsageError` if one cannot read the answers."""
    try:
        return scores(metrics, pairs)
    except named.WrongScore as error:
        raise UsageError(f"eval.metrics: {error.message}") from error


def scores(
    metrics: Sequence[str],
    pairs: Sequence[Answer],
    warn: Callable[[str], None] = lambda _: None,
) -> dict[str, float | None]:
    """Return the scores of (prediction, label) pairs by the names in `metrics`; see `score/named`.

    A score is None if it is undefined, such as the correlation with a constant.
    """
    return {name: value for name, (value, _) in signed_scores(metrics, pairs, warn).items()}


def signed_scores(
    metrics: Sequence[str], pairs: Sequence[Answer], warn: Callable[[str], None]
) -> dict[str, tuple[float | None, str]]:
    """Return the scores as `scores` does, each with its signature: the settings that decide it."""
    predictions, labels = [a for a, _ in pairs], [b for _, b in pairs]
    results: dict[str, tuple[float | None, str]] = {}
    for name in metrics:
        results[name] = None, ""
        with suppress(DataError):
            found = named.score(name, predictions, labels, warn)
            results[name] = (found.score if math.isfinite(found.score) else None), found.signature
    return results
