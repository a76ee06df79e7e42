"""Falls to `min_lr_ratio` by half a cosine, one step after the last step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nlpkit.config import NoSettings as Config

if TYPE_CHECKING:
    from nlpkit.train.schedule import ResolvedTraining

READS = ("min_lr_ratio",)


def factor(step: float, config: Config, settings: ResolvedTraining) -> float:
    """Return the cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * settings.decay_progress(step))) / 2
