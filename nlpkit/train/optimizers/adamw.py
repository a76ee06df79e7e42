"""AdamW (Loshchilov & Hutter 2019): Adam with decoupled weight decay; torch.optim.AdamW.

Its settings are those of `train`: `lr`, `weight_decay`, `beta1`, `beta2` and `adam_eps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nlpkit.config import NoSettings as Config
from nlpkit.contracts.optimizer import Group

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nlpkit.train.schedule import ResolvedTraining

NAME = "AdamW"
READS = ("beta1", "beta2", "adam_eps")
SHARDED = True
RATE = 2e-3  # at a width of 256
NARROWEST = 128  # the rate of narrower models was not tried


def peak_lr(config: Config, width: int) -> float | None:
    """Return the peak rate of a model of this width; see docs/dial.md."""
    return RATE * 256 / max(width, NARROWEST)


def state(config: Config, parameter: nn.Parameter) -> int:
    """Return the size of two moments."""
    return 2 * parameter.numel()


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return torch's AdamW."""
    return [adamw(settings, groups)]


def adamw(settings: ResolvedTraining, groups: Sequence[Group]) -> Optimizer:
    """Return torch's AdamW of these groups with the settings of `train`."""
    import torch

    from nlpkit.train.optim import uncompiled

    given, betas = [group.for_torch() for group in groups], (settings.beta1, settings.beta2)
    return uncompiled(torch.optim.AdamW)(given, betas=betas, eps=settings.adam_eps, fused=True)
