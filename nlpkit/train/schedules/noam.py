"""Falls as 1 / √step from the end of the warm-up (Vaswani et al. 2017, eq. 3, scaled to 1)."""

import math

from nlpkit.config import NoSettings as Config
from nlpkit.contracts.schedule import RunLength

NEEDS_WARMUP = True


def factor(step: float, config: Config, settings: RunLength) -> float:
    """Return √(warm-up / step)."""
    return math.sqrt(settings.warmup_steps / step)
