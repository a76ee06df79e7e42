"""Dropout (Srivastava et al. 2014) that draws its random numbers fast on CPUs.

On CPUs, torch draws one number with 53 bits for each element, which takes longer than all the rest
of dropout. Here an element takes 16 bits. So the probability is a multiple of 1 / 65,536, and the
scale is exactly that of this multiple.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEVELS = 1 << 16


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
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = min(max(round(p * _LEVELS), 1), _LEVELS - 1)  # levels of 65,536
        # The fastest way to random bits: four elements from one number.
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        level = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = torch.ge(level, dropped - _LEVELS // 2, out=torch.empty_like(x))  # 0 or 1
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        ctx.save_for_backward(kept)
        return torch.addcmul(x.new_zeros(()), x, kept, value=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.addcmul(grad.new_zeros(()), grad, kept, value=ctx.scale), None
