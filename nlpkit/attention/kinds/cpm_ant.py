"""CPM-Ant's attention: every token sees the context; a target also sees itself and earlier targets.

The mask is UniLM's sequence-to-sequence mask (Dong et al. 2019, arXiv:1905.03197). Inside a segment
the learned bias depends on T5's bidirectional bucket of the distance (Raffel et al. 2020, sec.
2.1); between different segments it is one scalar per ordered pair of segments. All layers share
one table; its rows have the order of `transformers`' `CpmAntSegmentPositionEmbedding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import buckets
from nlpkit.config import Size
from nlpkit.contracts.kind import ParamSpec, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "prefix"
FIELDS = ("context", "segment", "position", "span")
# Without spans, each sequence of the pack is one span, and the layout separates sequences.
OPTIONAL = ("span",)
SORT_FIRST = "context"
COST = "2/3 · N²"
buffers = buckets.buffers


class Config(buckets.Buckets):
    """The rows of the bias table; the defaults are those of CPM-Ant 10B."""

    num_buckets: Size = Field(512, ge=4, description="distance buckets, half for keys to the right")
    max_distance: int = Field(2048, ge=2, description="distance from which the last bucket is used")
    segment_types: Size = Field(32, description="number of segment ids")


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the shape of the bias table, which all layers share."""
    rows = config.num_buckets + config.segment_types**2
    return {"table": ParamSpec((rows, heads), shared=True)}


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the query may see the key."""
    visible = k["context"].bool() | (~q["context"].bool() & (k["position"] <= q["position"]))
    if "span" in q:
        visible = visible & (k["span"] == q["span"])
    return visible


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return 2/3 of all pairs: the visible ones, on average, if half of the tokens are context."""
    return sum(length**2 for length in lengths) * 2 / 3


def bias_index(config: Config, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens) -> Tensor:
    """Return the row of the bias table for each pair of query and key."""
    same = buckets.bias_index(config, buffers, q, k)
    of_query, of_key = q["segment"], k["segment"]
    other = config.num_buckets + of_query * config.segment_types + of_key
    return same.where(of_query == of_key, other)
