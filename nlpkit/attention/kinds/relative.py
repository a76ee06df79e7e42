"""Attention with learned keys for distances (Transformer-XL, Dai et al. 2019, arXiv:1901.02860).

The score of query i and key j is (q_i + u) k_j + (q_i + v) r_(i-j) + (q_i + s) g_(same text), times
the scale (Dai et al., sec. 3.3; Yang et al. 2019, arXiv:1906.08237, sec. 2.5). r_d is a linear
function of the sinusoid of the distance d = i - j. u, v, s, r and g are learned, in each layer.

Fields: `rank`, the place of a token in the factorization order (a token sees keys of at most its
own rank), and `segment`, the text of a token. Without them all keys are visible, and the last
product is 0. With `part_start`, the position where the part of a long sequence begins that a token
is in, a token sees its own part and, of the keys that are `memory`, those of the `memory` positions
before it (Dai et al., sec. 3.2).

N queries of a pack, P pairs of a query and a key of its sequence, R distances, H heads, D width of
a head, C = H * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Learned, ParamSpec, State, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position", "rank", "segment", "part_start", "memory")
OPTIONAL = ("rank", "segment", "part_start", "memory")
DROPOUT = True  # its probabilities can have dropout
COST = "2 · N²"


class Config(FrozenConfig):
    """The distances, and how far back a part of a sequence sees."""

    max_distance: int | None = Field(
        None, ge=1, description="greater distances count as this one; null: no limit"
    )
    memory: int = Field(0, ge=0, description="positions before its part that a token sees")

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`; XLNet's own kind is not in the recipe's section attention."""
        return {"memory": "outside of family xlnet, which has model.memory"}


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the learned tensors of a layer, in transformers' shapes."""
    return {
        "r": ParamSpec((heads * head_dim, heads, head_dim)),
        "r_w_bias": ParamSpec((heads, head_dim)),
        "r_r_bias": ParamSpec((heads, head_dim)),
        "r_s_bias": ParamSpec((heads, head_dim)),
        "seg_embed": ParamSpec((2, heads, head_dim)),
    }


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of all pairs, twice: each has two products."""
    return 2.0 * sum(length**2 for length in lengths)


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is at most as late in the order as the query."""
    visible = (q.index == q.index) & (k.index == k.index)
    if "rank" in q:
        visible = k["rank"] <= q["rank"]
    if "part_start" not in q:
        return visible
    start = q["part_start"]
    own = visible & (k["part_start"] == start)
    if "memory" not in k:
        return own
    before = (k["position"] < start) & (k["position"] >= start - config.memory)
    is_memory = k["memory"].bool()
    return (own & ~is_memory) | (before & is_memory)


class Pairs(NamedTuple):
    """All P pairs of a query and a key of the same sequence, the same for all layers."""

    distances: Tensor  # (R,) all distances of two tokens of a sequence, in order
    distance: Tensor  # (P,) the index query * R + distance of each pair
    segment: Tensor | None  # (P,) the index query * 2, + 1 where the texts differ
    hidden: Tensor  # (P,) bool: the query does not see the key
    blind: Tensor  # (N,) bool: the query sees no key


def prepare(request: Request) -> Pairs:
    """Return the `Pairs` of a pack."""
    import torch

    layout, keys = request.layout, request.keys
    device = layout.device
    sizes = torch.tensor(keys.lengths, device=device)[layout.document_ids]  # (N,) keys of a query
    total = sum(m * n for m, n in zip(layout.lengths, keys.lengths, strict=True))
    query = torch.arange(layout.total, device=device).repeat_interleave(sizes, output_size=total)
    # In the order of the queries, each with its keys in order.
    first = keys.cu_seqlens[:-1].long()[layout.document_ids] - (sizes.cumsum(0) - sizes)
    key = torch.arange(total, device=device) + first[query]
    longest = keys.max_length - 1
    if request.is_cross:
        longest = max(int(each["position"].max()) for each in (request.fields, request.key_fields))
    farthest = min(longest, request.config.max_distance or longest)
    distance = request.fields["position"][query] - request.key_fields["position"][key]
    distance = distance.clamp(-farthest, farthest) + farthest
    distances = torch.arange(-farthest, farthest + 1, device=device)
    segment = None
    if "segment" in request.fields:
        differ = request.fields["segment"][query] != request.key_fields["segment"][key]
        segment = 2 * query + differ
    visible = request.mask(query, key)
    seen = torch.zeros(layout.total, dtype=torch.int32, device=device)
    seen.index_add_(0, query, visible.int())
    index = query * len(distances) + distance
    return Pairs(distances, index, segment, ~visible, seen == 0)


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D); a query that sees no key gets zeros.

    Raises:
        ValueError: with a cache of attention: the model keeps the keys itself.
    """
    import torch

    if state is not None:
        raise ValueError("attention kind relative keeps no keys; the model does")
    dtype = q.dtype
    if q.device.type == "cpu":  # small products of ever new shapes are slower in bfloat16
        q, k, v = q.float(), k.float(), v.float()
    with torch.autocast(q.device.type, enabled=False):
        tensors = {name: tensor.to(q.dtype) for name, tensor in tensors.items()}
        return _attend(request, q, k, v, tensors).to(dtype)


def _attend(request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned) -> Tensor:
    """Return (N, H, D), computed in the type of the tensors."""
    import torch
    import torch.nn.functional as F

    pairs: Pairs = request.prepared
    by_distance = _make_distance_keys(request, pairs.distances, tensors["r"])
    scale = request.scale
    bias = _multiply((q + tensors["r_r_bias"]) * scale, by_distance).index_select(1, pairs.distance)
    if pairs.segment is not None:
        of_texts = _multiply((q + tensors["r_s_bias"]) * scale, tensors["seg_embed"])
        bias = bias + of_texts.index_select(1, pairs.segment)
    bias = bias.masked_fill(pairs.hidden, torch.finfo(torch.float32).min)  # (H, P)
    query_sizes, key_sizes = request.layout.lengths, request.keys.lengths
    queries = ((q + tensors["r_w_bias"]) * scale).transpose(0, 1).split(query_sizes, dim=1)
    keys = k.permute(1, 2, 0).split(key_sizes, dim=2)
    values = v.transpose(0, 1).split(key_sizes, dim=1)
    biases = bias.split([m * n for m, n in zip(query_sizes, key_sizes, strict=True)], dim=1)
    parts = []
    for one, key, value, added in zip(queries, keys, values, biases, strict=True):
        scores = one @ key + added.unflatten(1, (one.shape[1], key.shape[2]))
        weights = F.dropout(scores.softmax(2), request.dropout).to(v.dtype)
        parts.append(weights @ value)
    return torch.cat(parts, dim=1).transpose(0, 1).masked_fill(pairs.blind[:, None, None], 0.0)


def _multiply(q: Tensor, rows: Tensor) -> Tensor:
    """Return the products of queries (N, H, D) and rows (R, H, D), in float32: (H, N * R)."""
    return (q.transpose(0, 1) @ rows.permute(1, 2, 0)).flatten(1).float()


def _make_distance_keys(request: Request, distances: Tensor, r: Tensor) -> Tensor:
    """Return the keys of `distances` (R,), (R, H, D): sines, then cosines, through `r`."""
    import torch
    import torch.nn.functional as F

    steps = torch.arange(0, len(r), 2, device=distances.device).float() / len(r)
    angles = distances[:, None].float() / 10_000.0**steps
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)[:, : len(r)]  # of an odd width
    # As the authors do, with the rate of the probabilities.
    waves = F.dropout(waves, request.dropout).to(r.dtype)
    return (waves @ r.flatten(1)).unflatten(1, r.shape[1:])
