"""Falls to `min_lr_ratio` in a straight line, one step after the last step."""

from nlpkit.config import NoSettings as Config
from nlpkit.contracts.schedule import RunLength

READS = ("min_lr_ratio",)


def factor(step: float, config: Config, settings: RunLength) -> float:
    """Return what is left of the steps after the warm-up."""
    return 1 - settings.decay_progress(step)
