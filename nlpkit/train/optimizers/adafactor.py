"""Adafactor (Shazeer & Stern 2018): a second moment of rows and columns; torch.optim.Adafactor.

There is no first moment, and the second one takes a number for each row and each column of a
matrix. A step is relative to the size of the parameter: `train.lr` times its root mean square,
with at most 1 / √step in place of `train.lr`.
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

NAME = "Adafactor"
SHARDED = True  # `train/whole_tensors.py` puts the shards of a parameter together


class Config(FrozenConfig):
    """Settings of Adafactor."""

    beta2_decay: float = Field(
        -0.8, lt=0, description="the second moment decays by 1 - step ** beta2_decay"
    )
    eps1: float | None = Field(
        None, gt=0, description="smallest second moment is its square; default: float32's epsilon"
    )
    eps2: float = Field(1e-3, gt=0, description="smallest size of a parameter, for its steps")
    clip_threshold: float = Field(
        1.0, ge=1, description="largest root mean square of an update; torch's d"
    )


def state(config: Config, parameter: nn.Parameter) -> int:
    """Return a number for each row and each column of a matrix."""
    if parameter.ndim < 2:
        return parameter.numel()
    return parameter.numel() // parameter.shape[-1] + parameter.numel() // parameter.shape[-2]


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return torch's Adafactor."""
    import torch

    from nlpkit.train.optim import uncompiled
    from nlpkit.train.whole_tensors import on_whole_parameters

    given = [group.for_torch() for group in groups]
    kind = on_whole_parameters(uncompiled(torch.optim.Adafactor))
    eps = config.eps1, config.eps2
    return [kind(given, beta2_decay=config.beta2_decay, eps=eps, d=config.clip_threshold)]
