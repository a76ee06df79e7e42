"""Stochastic gradient descent with momentum; torch.optim.SGD.

`train.weight_decay` is added to the gradient (L2), as in torch: it is not decoupled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nlpkit.train.schedule import ResolvedTraining

NAME = "SGD"
SHARDED = True


class Config(FrozenConfig):
    """Settings of SGD."""

    momentum: float = Field(0.9, ge=0, lt=1, description="momentum; 0: none, and no state")
    nesterov: bool = Field(False, description="Nesterov's momentum")

    @model_validator(mode="after")
    def _has_momentum(self) -> Config:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: needs a momentum above 0")
        return self


def state(config: Config, parameter: nn.Parameter) -> int:
    """Return the size of the momentum, if there is one."""
    return parameter.numel() if config.momentum else 0


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return torch's SGD."""
    import torch

    from nlpkit.train.optim import uncompiled

    given = [group.for_torch() for group in groups]
    kind = uncompiled(torch.optim.SGD)
    return [kind(given, momentum=config.momentum, nesterov=config.nesterov)]
