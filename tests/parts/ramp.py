"""A schedule outside the package: the rate falls by powers of `fall`, and steps grow up to a size.

From one batch in the first step, a step has one batch more every `grow_every` steps, up to those of
train.tokens_per_step, as the batch size of GPT-3 (Brown et al. 2020, app. B).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig

if TYPE_CHECKING:
    from nlpkit.train.schedule import ResolvedTraining

READS = ("min_lr_ratio",)


class Config(FrozenConfig):
    """Settings of the ramp."""

    fall: float = Field(0.5, gt=0, lt=1, description="rate of a step in that of the one before")
    grow_every: int = Field(2, gt=0, description="steps until a step has one batch more")


def factor(step: float, config: Config, settings: ResolvedTraining) -> float:
    """Return the power of the step."""
    return config.fall ** (step - 1)


def batches(step: int, config: Config, usual: int) -> int:
    """Return the batches of a step, at most the usual number."""
    return min(usual, 1 + (step - 1) // config.grow_every)
