"""A gated feed-forward layer (Shazeer 2020, arXiv:2002.05202): SwiGLU.

N tokens of the pack, C hidden_size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) · up(x)), (N, C) from (N, C), with LLaMA's names."""

    def __init__(self, width: int, inside: int, bias: bool = False):
        super().__init__()
        self.gate_proj = nn.Linear(width, inside, bias)
        self.up_proj = nn.Linear(width, inside, bias)
        self.down_proj = nn.Linear(inside, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x)))


class _Gate(torch.autograd.Function):
    # Backward computes the activation again, because these tensors are the largest of a layer.

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate.requires_grad_()
            active = F.silu(gate)
        return *torch.autograd.grad(active, gate, grad * up), grad * active
