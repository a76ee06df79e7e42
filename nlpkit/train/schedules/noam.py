"""Falls as 1 / √step from the end of the warm-up (Vaswani et al. 2017, eq. 3, scaled to 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nlpkit.config import NoSettings as Config

if TYPE_CHECKING:
    from nlpkit.train.schedule import ResolvedTraining

NEEDS_WARMUP = True


def factor(step: float, config: Config, settings: ResolvedTraining) -> float:
    """Return √(warm-up / step)."""
    return math.sqrt(settings.warmup_steps / step)
