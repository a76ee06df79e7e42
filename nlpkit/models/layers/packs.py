"""What layers do with the tokens of a pack: layout, compute type, selection of states, dropout.

N tokens of the pack, M selected rows, S sequences, C model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nlpkit import attention
from nlpkit.attention.kernels.keep_mask import KeepMask, draw_seed
from nlpkit.contracts.request import Layout

if TYPE_CHECKING:
    from nlpkit.attention.cache import Cache


def layout_within(
    lengths: Sequence[int],
    max_positions: int | None,
    device: torch.device,
    cache: Cache | None = None,
) -> Layout:
    """Return the layout of a pack; raise `ValueError` if a sequence is too long for the model."""
    layout = attention.layout_of(lengths, device, cache)
    if max_positions is not None and layout.longest > max_positions:
        raise ValueError(
            f"a sequence of {layout.longest} tokens; the model has {max_positions} positions"
        )
    return layout


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Return the current type of linear layers: that of autocast, or else of the parameter."""
    device = parameter.device.type
    enabled = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else parameter.dtype


def select_rows(states: Tensor, rows: Tensor | None) -> Tensor:
    """Return the `rows` (M,) of states (N, C), or all of them."""
    return states if rows is None else states[rows]


def first_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the first token of each sequence in a pack."""
    ends = torch.tensor(lengths, device=hidden.device).cumsum(0)
    return hidden[F.pad(ends[:-1], (1, 0))]


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence in a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Return `x` with elements that are 0 with probability `p` and else divided by 1 - `p`.

    Srivastava et al. 2014; on CPUs with masks that are drawn fast. Random numbers come from torch's
    current generator. Without `training`, `x` is returned.
    """
    if not training or p == 0:
        return x
    return F.dropout(x, p) if x.device.type != "cpu" else _Dropout.apply(x, p)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x²) + eps) · weight of states (N, C) (Zhang & Sennrich 2019, arXiv:1910.07467).

    torch has no kernel for it on CPUs: its many passes over memory take four times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        own = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        return _RMSNorm.apply(x, self.weight, self.eps) if own else super().forward(x)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        factor = size.square_().div_(x.shape[1]).add_(eps).rsqrt_()  # (N, 1)
        ctx.save_for_backward(x, weight, factor)
        return (x * factor).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # The gradient of a layer norm with a mean of 0, which takes the mean away once too often.
        x, weight, factor = ctx.saved_tensors
        mean, wanted = torch.zeros_like(factor), [True, ctx.needs_input_grad[1], False]
        of_layer_norm = torch.ops.aten.native_layer_norm_backward
        dx, dw, _ = of_layer_norm(grad, x, weight.shape, mean, factor, weight, None, wanted)
        return dx.add_(grad.mv(weight)[:, None].mul_(factor).div_(x.shape[1])), dw, None


class _Dropout(torch.autograd.Function):
    # Backward draws the mask again: 1 % of a step's time for a tenth of its memory.

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
