"""Running sums with decay over packs, as fast as their length: x_i + d_i (x_(i-1) + …).

Two levels: all chunks of the pack at once, token by token; then from chunk to chunk. N tokens, C
channels, c tokens of a chunk. A document begins where the decay is 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 64  # about as many steps as there are chunks in a pack of 4,096 tokens


def running_max(x: Tensor, begins: Tensor) -> Tensor:
    """Return the maximum (N, C) of each token and those before it in its document.

    `begins` (N,) is True at the first token of each document.
    """
    chunks, first = _cut(x), _cut(begins[:, None])
    found = [chunks[:, 0]]
    for step in range(1, chunks.shape[1]):
        now = chunks[:, step]
        found.append(torch.where(first[:, step], now, torch.maximum(now, found[-1])))
    out = torch.stack(found, 1)
    # Where no document has begun in the chunk, the one of the chunk before goes on.
    begun = (first.cumsum(1) == 0).expand(-1, -1, 1)
    for chunk in range(1, len(out)):
        later = torch.maximum(out[chunk], out[chunk - 1, -1])
        out[chunk] = torch.where(begun[chunk], later, out[chunk])
    return out.flatten(0, 1)[: len(x)]


def _scan(x: Tensor, decay: Tensor) -> Tensor:
    """Return the sums (N, A, C) of x (N, A, C) with the decay (N, C) of all before each token."""
    chunks, decays = _cut(x), _cut(decay)
    out = torch.empty_like(chunks)
    out[:, 0] = chunks[:, 0]
    for step in range(1, chunks.shape[1]):
        torch.addcmul(chunks[:, step], decays[:, step, None], out[:, step - 1], out=out[:, step])
    carried = decays.cumprod(1)[:, :, None]
    for chunk in range(1, len(out)):
        out[chunk].addcmul_(carried[chunk], out[chunk - 1, -1])
    return out.flatten(0, 1)[: len(x)]


def _cut(x: Tensor) -> Tensor:
    """Return (n, c, …) from (N, …); the last chunk is filled with zeros."""
    missing = -len(x) % _CHUNK
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)).unflatten(0, (-1, _CHUNK))


class _RunningSums(torch.autograd.Function):
    """The sums are linear in x; the decay is a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor) -> Tensor:
        ctx.save_for_backward(decay)
        return _scan(x, decay)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x: the same sums, from right to left."""
        (decay,) = ctx.saved_tensors
        later = F.pad(decay[1:], (0, 0, 0, 1)).flip(0)  # of the token to the right
        return _scan(given.flip(0), later).flip(0), None


def running_sums(x: Tensor, decay: Tensor) -> Tensor:
    """Return s (N, A, C), s_i = x_i + decay_i s_(i-1); `decay` (N, C) gets no gradient."""
    sums: Tensor = _RunningSums.apply(x, decay)
    return sums
