"""Stays at the peak, then falls in a straight line in the last `decay_ratio` of the run.

Warm-up, stable, decay (Hu et al. 2024, MiniCPM, sec. 4); linear as in Hägele et al. 2024. It
reaches `min_lr_ratio` one step after the last step.
"""

from nlpkit.config import NoSettings as Config
from nlpkit.contracts.schedule import RunLength

READS = ("min_lr_ratio", "decay_ratio")


def factor(step: float, config: Config, settings: RunLength) -> float:
    """Return what is left of the decay."""
    stable = settings.steps - settings.decay_steps
    return 1 - max(0, step - stable) / (settings.decay_steps + 1)
