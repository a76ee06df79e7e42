"""Muon (Jordan et al. 2024) for the matrices of layers, AdamW for all else; torch.optim.Muon.

The momentum of a matrix is orthogonalized by Newton-Schulz iterations. `match_rms_adamw` scales the
update to the size of AdamW's, so that both take the same rate (Liu et al. 2025, arXiv:2502.16982).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group, Trained, decay_of
from nlpkit.train.optimizers.adamw import NARROWEST, adamw

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nlpkit.train.settings import ResolvedTraining

READS = ("beta1", "beta2", "adam_eps")  # of the AdamW part
SHARDED = True  # `train/split_muon.py` puts the shards of a matrix together
RATE = 8e-3  # at a width of 256
NAME = "Muon"


class Config(FrozenConfig):
    """Settings of Muon; `train.lr` and `train.weight_decay` are those of the matrices."""

    momentum: float = Field(0.95, ge=0, lt=1, description="momentum of the matrices")
    nesterov: bool = Field(True, description="Nesterov's momentum")
    ns_steps: int = Field(5, gt=0, lt=100, description="Newton-Schulz iterations of a step")
    adjust_lr_fn: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="scale of an update by the shape of its matrix; match_rms_adamw: 0.2 "
        "sqrt(max(rows, columns)), for rates such as AdamW's; original: "
        "sqrt(max(1, rows / columns)), for larger ones",
    )
    adamw_lr: float | None = Field(
        None, gt=0, description="peak learning rate of the AdamW part; default: train.lr"
    )
    adamw_weight_decay: float | None = Field(
        None, ge=0, description="weight decay of tables and heads; default: train.weight_decay"
    )


def peak_lr(config: Config, width: int) -> float | None:
    """Return the peak rate of a model of this width; None if there is no rule.

    `match_rms_adamw` makes steps of the size of AdamW's, and the best rate goes by 1 / width, as
    AdamW's does: measured from 128 to 512 wide, see docs/dial.md.
    """
    if config.adjust_lr_fn != "match_rms_adamw":
        return None
    return RATE * 256 / max(width, NARROWEST)


def groups(config: Config, settings: ResolvedTraining, trained: Trained) -> list[Group]:
    """Return the matrices of layers, those with several in a tensor apart, and AdamW's groups."""
    numbers, decay = trained.matrices, decay_of(settings)
    found = []
    for count in sorted({*numbers.values()}):
        alike = [p for p in trained.parameters if numbers.get(p) == count]
        size = sum(p.numel() for p in alike)
        found.append(Group(NAME, "layer matrices", alike, settings.lr, decay, size, count))
    rest = [p for p in trained.parameters if p not in numbers]
    lr = settings.lr if config.adamw_lr is None else config.adamw_lr
    if config.adamw_weight_decay is not None and settings.tune == "all":
        decay = config.adamw_weight_decay
    for what, alike, decayed in (
        ("tables, others", [p for p in rest if p.ndim >= 2], decay),
        ("norms, biases", [p for p in rest if p.ndim < 2], 0.0),
    ):
        if alike:
            size = 2 * sum(p.numel() for p in alike)
            found.append(Group("AdamW", what, alike, lr, decayed, size))
    return found


def make(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> list[Optimizer]:
    """Return Muon and AdamW, each if it has parameters."""
    import torch

    from nlpkit.train.split_muon import SplitMuon

    made: list[Optimizer] = []
    if matrices := [group for group in groups if group.optimizer == NAME]:
        own = config.model_dump(exclude={"adamw_lr", "adamw_weight_decay"})
        # Where bfloat16 is not what the run computes in, it may be slow, too.
        dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
        made.append(SplitMuon(matrices, dtype, lr=settings.lr, **own))
    if others := [group for group in groups if group.optimizer != NAME]:
        made.append(adamw(settings, others))
    return made
