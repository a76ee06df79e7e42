"""cosFormer: linear attention with ReLU features, reweighted by the cosine of the distance.

Qin et al. 2022, arXiv:2202.08791: the weight of key j for query i is relu(q_i) relu(k_j)
cos(pi / 2 (i - j) / M), over the sum of the weights of all keys that i sees. As cos(a - b) =
cos(a) cos(b) + sin(a) sin(b), it is a product of features of twice the width, and sums replace the
matrix as in `linear`. M is at least the longest sequence, so that no weight is
negative. Products and sums are in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.attention.kinds import linear as plain
from nlpkit.contracts.kind import Learned, State, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False
COST = "N"
visibility = sides.visibility
mask = sides.mask
prepare = plain.prepare
_LEAST = 1e-6  # of a sum of weights, which may be 0: that of the authors' code


class Config(sides.SidesConfig):
    """M, and which side a token sees."""

    max_length: int | None = Field(
        None, ge=1, description="M, the longest sequence; null: max_positions of the model"
    )


def is_bounded(config: Config) -> bool:
    """Return whether sequences have at most `max_length` tokens: always."""
    return True


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return twice what `linear` does, since features are twice as wide."""
    return 128.0 * sum(lengths)


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D); `state` is S (B, H, 2 D, D) and Z (B, H, 2 D)."""
    from nlpkit.attention.forms import linear

    longest = request.config.max_length

    def features(x: Tensor, positions: Tensor) -> Tensor:
        import torch

        angles = positions.to(x.dtype) * (math.pi / 2 / longest)
        x = x.relu()
        return torch.cat([x * angles.cos(), x * angles.sin()], dim=-1)

    return linear.attend(request, q, k, v, state, features, _LEAST)
