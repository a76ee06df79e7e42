"""Rprop (Riedmiller & Braun 1993), an optimizer outside the package: torch.optim.Rprop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group, Trained
from nlpkit.train.param_groups import by_dimension, param_groups

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nlpkit.train.settings import ResolvedTraining

READS = ()
SHARDED = True
PACKAGE = None


class Config(FrozenConfig):
    """Settings of Rprop."""

    grow: float = Field(1.2, gt=1, description="growth of a step whose sign stays")


def groups(config: Config, settings: ResolvedTraining, trained: Trained) -> list[Group]:
    """Return the groups; the last gradient and the size of the step are kept."""
    return by_dimension("Rprop", trained, settings, [2 * p.numel() for p in trained.parameters])


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return torch's Rprop."""
    import torch

    return [torch.optim.Rprop(param_groups(groups), lr=settings.lr, etas=(0.5, config.grow))]
