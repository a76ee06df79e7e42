"""Gated feed-forward layers (Shazeer 2020, arXiv:2002.05202): SwiGLU, GeGLU.

N tokens of the pack, C hidden_size.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nlpkit.models.layers.encoder import ACTIVATIONS as _ACTIVATIONS

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {**_ACTIVATIONS, "silu": F.silu}
)


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) · up(x)), (N, C) from (N, C), with LLaMA's names."""

    def __init__(self, width: int, inside: int, activation: str = "silu", bias: bool = False):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(width, inside, bias)
        self.up_proj = nn.Linear(width, inside, bias)
        self.down_proj = nn.Linear(inside, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        inside = _Gate.apply(self.gate_proj(x), self.up_proj(x), self.activation)
        return self.down_proj(inside)


class _Gate(torch.autograd.Function):
    # Backward computes the activation again, because these tensors are the largest of a layer.

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Callable[..., Tensor]) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(gate, up)
        return activation(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate.requires_grad_()
            active = ctx.activation(gate)
        return *torch.autograd.grad(active, gate, grad * up), grad * active, None
