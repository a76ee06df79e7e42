"""Falls to `min_lr_ratio` in a straight line, one step after the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.config import NoSettings as Config

if TYPE_CHECKING:
    from nlpkit.train.schedule import ResolvedTraining

READS = ("min_lr_ratio",)


def factor(step: float, config: Config, settings: ResolvedTraining) -> float:
    """Return what is left of the steps after the warm-up."""
    return 1 - settings.decay_progress(step)
