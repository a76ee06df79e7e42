"""Relative positions as learned vectors, added to the keys and to the values.

Shaw et al. 2018, arXiv:1803.02155, eq. 3-5: the score of query i and key j is q_i (k_j + a^K_ij)
times the scale, and the answer the mean of v_j + a^V_ij; a_ij depends on the distance j - i alone,
and distances beyond `max_distance` count as it. Each layer has its own vectors, its heads share
them.

N tokens, M keys of a sequence, R distances, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.config import Size
from nlpkit.contracts.kind import Learned, ParamSpec, State, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False  # there is no distance between two texts
DROPOUT = True  # its probabilities can have dropout
COST = "N²"
visibility = sides.visibility
mask = sides.mask


class Config(sides.SidesConfig):
    """How many distances have a vector, and what it is added to; the defaults are the paper's."""

    max_distance: Size = Field(16, description="greater distances count as this one")
    values: bool = Field(True, description="whether values, too, have a vector for the distance")


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the vectors of a layer: of key distances -max_distance … 0 or … max_distance."""
    distances = config.max_distance * (1 if sides.is_causal(config) else 2) + 1
    table = ParamSpec((distances, head_dim))
    return {"key_table": table, **({"value_table": table} if config.values else {})}


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of all pairs: what the right hides is computed, too."""
    return float(sum(length**2 for length in lengths))


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D), computed in float32; `state` is all `keys` and `values` (B, T, H, D)."""
    from nlpkit.attention.forms import growing
    from nlpkit.attention.forms.linear import sum_dtype

    return growing.attend_each(request, (q, k, v), tensors, state, sum_dtype(q.dtype), _attend)


def _attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, past: int, tensors: Learned
) -> Tensor:
    """Return (N, H, D) of the queries of one sequence, the first of which is at place `past`."""
    import torch
    import torch.nn.functional as F

    farthest, device = request.config.max_distance, q.device
    query = torch.arange(past, past + len(q), device=device)[:, None]
    distance = torch.arange(len(k), device=device) - query  # (N, M), to the left negative
    causal = sides.is_causal(request.config)
    row = distance.clamp(-farthest, 0 if causal else farthest) + farthest
    row = row.expand(q.shape[1], -1, -1)
    q = q.transpose(0, 1) * request.scale  # (H, N, D)
    scores = q @ k.permute(1, 2, 0) + (q @ tensors["key_table"].T).gather(2, row)
    if causal:
        scores = scores.masked_fill(distance > 0, -torch.inf)
    weights = F.dropout(scores.softmax(2), request.dropout)
    out = weights @ v.transpose(0, 1)
    if "value_table" in tensors:
        table = tensors["value_table"]
        by_distance = weights.new_zeros(*q.shape[:2], len(table)).scatter_add(2, row, weights)
        out = out + by_distance @ table
    return out.transpose(0, 1)
