"""Rprop (Riedmiller & Braun 1993), an optimizer outside the package: torch.optim.Rprop."""

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

NAME = "Rprop"
READS = ()
SHARDED = True
PACKAGE = None


class Config(FrozenConfig):
    """Settings of Rprop."""

    grow: float = Field(1.2, gt=1, description="growth of a step whose sign stays")


def state(config: Config, parameter: nn.Parameter) -> int:
    """Return the size of the last gradient and of the step, which are kept."""
    return 2 * parameter.numel()


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return torch's Rprop."""
    import torch

    return [
        torch.optim.Rprop(
            [group.for_torch() for group in groups], lr=settings.lr, etas=(0.5, config.grow)
        )
    ]
