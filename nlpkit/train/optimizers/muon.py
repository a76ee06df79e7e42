"""Muon (Jordan et al. 2024) for the matrices of layers, AdamW for all else; torch.optim.Muon.

The momentum of a matrix is orthogonalized by Newton-Schulz iterations. `match_rms_adamw` scales the
update to the size of AdamW's, so that both take the same rate (Liu et al. 2025, arXiv:2502.16982).

Queries, keys and values in one layer, or the gates of a recurrent cell, are matrices of their own:
together they would be orthogonalized against one another. So the step is our own; the update of
each matrix is that of torch.optim.Muon, bit for bit in bfloat16. torch knows no other type, in
which a CPU without units for it takes 25 times as long as in float32, or more (docs/optimizers.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.optimizer import Group, Trained, decay_of
from nlpkit.json_types import JsonObject
from nlpkit.train.optimizers.adamw import NARROWEST, adamw

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer

    from nlpkit.train.schedule import ResolvedTraining

READS = ("beta1", "beta2", "adam_eps")  # of the AdamW part
SHARDED = True  # `_step` puts the shards of a matrix together
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
    AdamW's does: measured from 128 to 512 wide, see docs/lab/dial.md.
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
    made: list[Optimizer] = []
    if matrices := [group for group in groups if group.optimizer == NAME]:
        made.append(_make_muon(config, settings, matrices))
    if others := [group for group in groups if group.optimizer != NAME]:
        made.append(adamw(settings, others))
    return made


def _make_muon(config: Config, settings: ResolvedTraining, groups: Sequence[Group]) -> Optimizer:
    import torch

    # Where bfloat16 is not what the run computes in, it may be slow, too.
    dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
    members = {"step": torch.no_grad()(_step), "dtype": dtype}
    kind = type(NAME, (torch.optim.Optimizer,), members)
    given = [group.for_torch() | {"matrices": group.matrices} for group in groups]
    made: Optimizer = kind(given, config.model_dump(exclude={"adamw_lr", "adamw_weight_decay"}))
    return made


def _step(optimizer: Any, closure: None = None) -> None:
    """Take a step on the matrices of each group, which lie one below the other in its parameters.

    The state of a parameter is one tensor of its shape. Shards of FSDP are put together, one
    parameter after the other, as whole matrices are needed: all processes must step together.
    """
    import torch

    from nlpkit.train import shards

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            momentum = state["momentum_buffer"]
            whole = [shards.whole(tensor) for tensor in (parameter, parameter.grad, momentum)]
            split = [_split(tensor, group["matrices"]) for tensor in whole]
            for matrix, grad, kept in zip(*split, strict=True):
                _update(group, optimizer.dtype, matrix, grad, kept)
            if shards.is_shard(parameter):
                from nlpkit.train.whole_tensors import fill

                fill(parameter, whole[0])
                fill(momentum, whole[2])


def _split(tensor: Tensor, count: int) -> list[Tensor]:
    # `view` raises an error where a copy would be needed, which would get the update.
    return list(tensor.view(len(tensor), -1).chunk(count))


def _update(
    group: JsonObject, dtype: torch.dtype, matrix: Tensor, grad: Tensor, momentum: Tensor
) -> None:
    lr, keep = group["lr"], group["momentum"]
    momentum.lerp_(grad, 1 - keep)
    update = grad.lerp(momentum, keep) if group["nesterov"] else momentum
    update = _orthogonalize(update.to(dtype, copy=True), group["ns_steps"])
    rows, columns = matrix.shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        scale = 0.2 * math.sqrt(max(rows, columns))
    else:  # original
        scale = math.sqrt(max(1, rows / columns))
    matrix.mul_(1 - lr * group["weight_decay"])
    matrix.add_(update, alpha=-(lr * scale))


def _orthogonalize(update: Tensor, steps: int) -> Tensor:
    """Return `update`, which is overwritten, with singular values near 1.

    By Newton-Schulz iterations (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), as
    in torch.optim.Muon.
    """
    import torch

    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[0] > update.shape[1]
    x = update.T if tall else update
    x.div_(x.norm().clamp(min=1e-7))
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
