"""Content and distance as vectors of their own: disentangled attention (DeBERTa).

He et al. 2020, arXiv:2006.03654, eq. 4, as DeBERTa-v2 computes it: the score of query i and key j
is (q_i k_j + q_i a_(i-j) + k_j b_(i-j)) times the scale, over the root of the number of its terms.
a_d and b_d are the position's key and query of the distance d = i - j. Distances below half of
`buckets` have vectors of their own; those beyond share them by their logarithm, up to
`max_distance` (He et al. 2021, arXiv:2111.09543, in the authors' code).

Here each layer learns a and b; DeBERTa makes them by the projections of its queries and keys.

n queries and m keys of a sequence, R rows of a table, H heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

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
COST = "5 · N²"  # both terms of distances have products with 2 N of them
visibility = sides.visibility
mask = sides.mask


class Config(sides.SidesConfig):
    """Which distances are told apart, and which terms the score has; the defaults are v3's."""

    buckets: int = Field(
        256,
        ge=0,
        multiple_of=2,
        description="rows of a table for either side; 0: one for each distance",
    )
    max_distance: Size = Field(512, description="greater distances count as this one")
    terms: Literal["both", "c2p", "p2c"] = Field(
        "both", description="what depends on the distance: content to position, position to content"
    )

    @property
    def rows(self) -> int:
        """The rows of a table: distances to the right, then those to the left."""
        return 2 * (self.buckets or self.max_distance)

    @property
    def num_terms(self) -> int:
        """The number of products in a score."""
        return 3 if self.terms == "both" else 2


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the tables of a layer: the position's keys and queries of each row."""
    names = {"c2p": "position_keys", "p2c": "position_queries"}
    table = ParamSpec((config.rows, heads, head_dim))
    return {name: table for term, name in names.items() if config.terms in (term, "both")}


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of products: of a token with all keys, and with all their distances."""
    return float(sum(n**2 + (config.num_terms - 1) * n * (2 * n - 1) for n in lengths))


def row_of(config: Config, distance: Tensor) -> Tensor:
    """Return the row of each distance (…) int64, query minus key.

    In float32 as transformers' `make_log_bucket_position`, so that no distance changes its row.
    """
    import torch

    exact, farthest = config.buckets // 2, config.max_distance
    distance = distance.clamp(-farthest, farthest)
    if config.buckets and farthest > exact + 1:
        far = distance.abs().clamp(min=exact)
        widest = torch.tensor((farthest - 1) / exact).log()
        log = torch.ceil((far / exact).log() / widest * (exact - 1)) + exact
        distance = distance.where(distance.abs() <= exact, (log * distance.sign()).long())
    half = config.rows // 2
    return (distance + half).clamp(0, 2 * half - 1)


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D); `state` is all `keys` and `values` (B, T, H, D).

    On CPUs all is computed in float32 at least: small products of ever new shapes are slower in
    bfloat16.
    """
    from nlpkit.attention.forms import growing
    from nlpkit.attention.forms.linear import sum_dtype

    dtype = sum_dtype(q.dtype) if q.device.type == "cpu" else q.dtype
    return growing.attend_each(request, (q, k, v), tensors, state, dtype, _attend)


def _attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, past: int, tensors: Learned
) -> Tensor:
    """Return (n, H, D) of the queries of one sequence, the first of which is at place `past`."""
    import torch
    import torch.nn.functional as F

    from nlpkit.attention.forms.linear import sum_dtype

    config, n, m = request.config, len(q), len(k)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    scale = request.scale / math.sqrt(config.num_terms)
    # All distances of a query and a key, from the greatest: query - key of the last and the first.
    distance = torch.arange(past + n - 1, past - m, -1, device=q.device)
    row = row_of(config, distance)
    scores = (q * scale) @ k.mT
    if "position_keys" in tensors:
        of_distance = tensors["position_keys"][row].permute(1, 2, 0)
        scores = scores + _align((q * scale) @ of_distance, m)
    if "position_queries" in tensors:
        of_distance = tensors["position_queries"][row.flip(0)].permute(1, 2, 0)
        scores = scores + _align(k @ (of_distance * scale), n).mT
    if sides.is_causal(config):
        later = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(past + 1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = F.dropout(scores.softmax(2, sum_dtype(v.dtype)).to(v.dtype), request.dropout)
    return (weights @ v).transpose(0, 1)


def _align(x: Tensor, columns: int) -> Tensor:
    """Return (H, n, `columns`) whose row i is that of x (H, n, n + columns - 1) from n - 1 - i on.

    Column j of row i is then of one distance of i and j (Dai et al. 2019, app. B).
    """
    import torch.nn.functional as F

    n = x.shape[1]
    width = n + columns - 1
    flat = F.pad(x, (0, 1)).flatten(1)
    return flat[:, n - 1 : n - 1 + n * width].unflatten(1, (n, width))[:, :, :columns]
