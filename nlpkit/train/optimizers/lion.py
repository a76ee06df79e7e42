"""Lion (Chen et al. 2023): the sign of a momentum, one state a weight; the package lion-pytorch.

Its updates are larger than Adam's: the paper takes a 3 to 10 times smaller `train.lr`, with a
`train.weight_decay` that is larger by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group, Trained
from nlpkit.train.param_groups import by_dimension, check_installed, param_groups

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nlpkit.train.settings import ResolvedTraining

SHARDED = True
PACKAGE = "lion-pytorch"


class Config(FrozenConfig):
    """Settings of Lion."""

    beta1: float = Field(0.9, ge=0, lt=1, description="weight of the momentum in an update")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the momentum")


def groups(config: Config, settings: ResolvedTraining, trained: Trained) -> list[Group]:
    """Return matrices and tables, which are decayed, and norms and biases."""
    return by_dimension("Lion", trained, settings, [p.numel() for p in trained.parameters])


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return lion-pytorch's Lion; raise `Unsupported` if it is not installed."""
    check_installed(PACKAGE)
    from lion_pytorch import Lion

    return [Lion(param_groups(groups), lr=settings.lr, betas=(config.beta1, config.beta2))]
