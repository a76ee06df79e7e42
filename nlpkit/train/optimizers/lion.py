"""Lion (Chen et al. 2023): the sign of a momentum, one state a weight; the package lion-pytorch.

Its updates are larger than Adam's: the paper takes a 3 to 10 times smaller `train.lr`, with a
`train.weight_decay` that is larger by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nlpkit.train.schedule import ResolvedTraining

NAME = "Lion"
SHARDED = True
PACKAGE = "lion-pytorch"


class Config(FrozenConfig):
    """Settings of Lion."""

    beta1: float = Field(0.9, ge=0, lt=1, description="weight of the momentum in an update")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the momentum")


def state(config: Config, parameter: nn.Parameter) -> int:
    """Return the size of the momentum."""
    return parameter.numel()


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return lion-pytorch's Lion."""
    from lion_pytorch import Lion

    given = [group.for_torch() for group in groups]
    return [Lion(given, betas=(config.beta1, config.beta2))]
