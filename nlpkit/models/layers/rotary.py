"""Rotary positions (Su et al. 2021, arXiv:2104.09864, eq. 34), in transformers' order of channels.

Channel i of the first half of a head and channel i of the second half are turned together, by the
position times frequency i. With partial rotary positions only the first channels of a head turn.
For longer sequences frequencies are divided: all of them (linear; Chen et al. 2023,
arXiv:2306.15595), the low ones (llama3; Llama 3.1), or the low ones by a ramp over dimensions
(yarn; Peng et al. 2023, arXiv:2309.00071, sec. 3.2).

N tokens of the pack, H heads, D width of a head, R channels that turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nlpkit.attention import Attend
from nlpkit.contracts.kind import Learned
from nlpkit.models.layers.rotary_config import Rope, yarn_scale


class Rotation:
    """The turns of the tokens of a step: `rotation(x)` for queries or keys (N, H, D)."""

    def __init__(self, rope: Rope, channels: int, positions: Tensor, dtype: torch.dtype):
        """Take the R `channels` that turn, positions (N,), and the type of queries and keys."""
        angles = positions[:, None, None].float() * frequencies(rope, channels, positions.device)
        scale = 1.0
        if rope.kind == "yarn":
            scale = rope.attention_factor or yarn_scale(rope.factor or 1.0)
        self.cos, self.sin = ((turn * scale).to(dtype) for turn in (angles.cos(), angles.sin()))

    def __call__(self, x: Tensor) -> Tensor:
        """Return (N, H, D)."""
        return _Rotate.apply(x, self.cos, self.sin)

    def of(self, attend: Attend) -> Attend:
        """Return attention that turns its queries and keys before."""

        def run(q: Tensor, k: Tensor, v: Tensor, tensors: Learned | None = None) -> Tensor:
            q, k = self(q), self(k)
            return attend.run(q, k, v, tensors) if tensors else attend.run(q, k, v)

        return replace(attend, run=run)


class HeadNorm(nn.RMSNorm):
    """An RMS norm of each head (N, H, D), in the type of the heads."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


@cache
def frequencies(rope: Rope, channels: int, device: torch.device) -> Tensor:
    """Return the angles (R / 2,) by which one position turns the channels, in float32."""
    steps = torch.arange(0, channels, 2, dtype=torch.float32, device=device)
    plain = 1.0 / rope.theta ** (steps / channels)
    return _STRETCH[rope.kind](rope, plain, channels)


def _llama3(rope: Rope, plain: Tensor, channels: int) -> Tensor:
    """Return the frequencies of Llama 3.1's code: a ramp over the turns in the old length."""
    assert rope.factor
    low, high = rope.low_freq_factor, rope.high_freq_factor
    turns = (rope.original_positions or 1) * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / rope.factor + share * plain


def _yarn(rope: Rope, plain: Tensor, channels: int) -> Tensor:
    """Return the frequencies of sec. 3.2: a ramp over dimensions, between two numbers of turns."""
    assert rope.factor
    log_theta, longest = math.log(rope.theta), rope.original_positions or 1

    def dimension(turns: float) -> float:
        return channels * math.log(longest / (turns * 2 * math.pi)) / (2 * log_theta)

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, channels - 1)
    number = torch.arange(len(plain), dtype=torch.float32, device=plain.device)
    share = 1 - ((number - low) / (high - low or 0.001)).clamp(0, 1)
    return plain / rope.factor * (1 - share) + plain * share


_STRETCH: Mapping[str, Any] = MappingProxyType({
    "default": lambda rope, plain, channels: plain,
    "linear": lambda rope, plain, channels: plain / rope.factor,
    "llama3": _llama3,
    "yarn": _yarn,
})  # fmt: skip


class _Rotate(torch.autograd.Function):
    # Backward turns the other way; autograd's own would keep and add halves of zeros.

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*parts, x[..., 2 * half :]] if x.shape[-1] > 2 * half else parts, -1)
