"""cosFormer: linear attention with ReLU features, reweighted by the cosine of the distance.

Qin et al. 2022, arXiv:2202.08791: the weight of key j for query i is relu(q_i) relu(k_j)
cos(pi / 2 (i - j) / M), over the sum of the weights of all keys that i sees. As cos(a - b) =
cos(a) cos(b) + sin(a) sin(b), it is a product of features of twice the width, and sums replace the
matrix as in `linear`. M is at least the longest sequence, so that no weight is
negative. Products and sums are in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from nlpkit.attention.kinds import _either

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
CROSS = False
COST = "N"
visibility = _either.visibility
mask = _either.mask
_LEAST = 1e-6  # of a sum of weights, which may be 0: that of the authors' code


class Config(_either.EitherConfig):
    """M, and which side a token sees."""

    bounded: ClassVar[bool] = True
    max_length: int | None = Field(
        None,
        ge=1,
        description="M, the longest sequence there can be; null: that of the model",
    )


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def pairs(config, lengths):
    """Return the work of a token as that of 128 pairs, which is right for heads of width 64.

    The sums take 2 D times D products, twice; a pair takes D of them, twice.
    """
    return 128.0 * sum(lengths)


def reference(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the matrix of all weights."""
    import torch

    place = torch.arange(len(q), device=q.device, dtype=q.dtype)
    cosines = torch.cos(math.pi / 2 * (place[:, None] - place) / config.max_length)
    weights = torch.einsum("ihd,jhd->hij", q.relu(), k.relu()) * cosines
    if _either.is_causal(config):
        weights = weights.tril()
    norms = weights.sum(-1, keepdim=True).clamp(min=_LEAST)
    return torch.einsum("hij,jhd->ihd", weights / norms, v)


def prepared(request):
    """Return the chunks of the pack where they are needed."""
    from nlpkit.attention import linear_form

    causal = _either.is_causal(request.config)
    return linear_form.chunks_of(request) if causal else None


def attend(request, q, k, v, tensors, state):
    """Return (N, H, D); `state` is S (B, H, 2 D, D) and Z (B, H, 2 D)."""
    from nlpkit.attention import linear_form

    longest = request.config.max_length

    def features(x: Tensor, positions: Tensor) -> Tensor:
        import torch

        angles = positions.to(x.dtype) * (math.pi / 2 / longest)
        x = x.relu()
        return torch.cat([x * angles.cos(), x * angles.sin()], dim=-1)

    return linear_form.attended(request, q, k, v, state, features, _LEAST)
