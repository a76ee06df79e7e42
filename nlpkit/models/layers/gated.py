"""Gated feed-forward layers (Shazeer 2020, arXiv:2002.05202): SwiGLU, GeGLU.

N tokens of the pack, C hidden_size.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

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
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
