"""Falls to `min_lr_ratio` by half a cosine, one step after the last step."""

import math

from nlpkit.config import NoSettings as Config
from nlpkit.contracts.schedule import RunLength

READS = ("min_lr_ratio",)


def factor(step: float, config: Config, settings: RunLength) -> float:
    """Return the cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * settings.decay_progress(step))) / 2
