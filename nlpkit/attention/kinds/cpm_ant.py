"""CPM-Ant's attention: a context that sees itself, targets that see it and what came before them.

The mask is UniLM's sequence-to-sequence mask (Dong et al. 2019, arXiv:1905.03197); the learned bias
is T5's bidirectional bucket of the distance inside a segment (Raffel et al. 2020, sec. 2.1) and one
scalar for each ordered pair of different segments. One table serves all layers; its rows are laid
out as in `transformers`' `CpmAntSegmentPositionEmbedding`.
"""

import math
from functools import lru_cache

from pydantic import Field, model_validator

from nlpkit.attention.contract import Learned
from nlpkit.config import FrozenConfig

VISIBILITY = "prefix"
KERNEL = None
FIELDS: tuple[str, ...] = ("context", "segment", "position", "span")
# Without spans each sequence of the pack is one span, which the layout already keeps apart.
OPTIONAL: tuple[str, ...] = ("span",)
SORT_FIRST: str | None = "context"


class Config(FrozenConfig):
    """What the rows of the bias table mean; the defaults are CPM-Ant 10B's."""

    num_buckets: int = Field(512, ge=4, description="Distance buckets, half for keys to the right.")
    max_distance: int = Field(
        2048, ge=2, description="Distance from which the last bucket is used."
    )
    segment_types: int = Field(32, ge=1, description="Number of segment ids.")

    @model_validator(mode="after")
    def _logarithmic(self):
        exact = self.num_buckets // 4
        if self.max_distance <= exact:
            raise ValueError(
                f"max_distance: {self.max_distance} must be larger than num_buckets // 4 = "
                f"{exact}, the distances with a bucket of their own"
            )
        return self


def tensors(config, heads, head_dim):
    """Return the bias table, which all layers share."""
    rows = config.num_buckets + config.segment_types**2
    return {"table": Learned((rows, heads), shared=True)}


def mask(config, q, k):
    """Return True where the query may see the key."""
    visible = k["context"].bool() | (~q["context"].bool() & (k["position"] <= q["position"]))
    if "span" in q:
        visible = visible & (k["span"] == q["span"])
    return visible


def pairs(config, lengths):
    """Return 2/3 of all pairs, which the mask leaves on average where half is context."""
    return sum(length**2 for length in lengths) * 2 / 3


@lru_cache(maxsize=8)
def buffers(config):
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max.

    A table, because a logarithm that rounds otherwise on another device would move a boundary.
    """
    import torch

    distance = torch.arange(-config.max_distance, config.max_distance + 1)
    return {"buckets": bucket(distance, config.num_buckets, config.max_distance)}


def bias_index(config, buffers, q, k):
    """Return the row of the bias table for each pair of query and key."""
    # From max_distance on all distances share the last bucket, so clamping loses nothing.
    distance = (k["position"] - q["position"]).clamp(-config.max_distance, config.max_distance)
    same = buffers["buckets"][distance + config.max_distance]
    of_query, of_key = q["segment"], k["segment"]
    other = config.num_buckets + of_query * config.segment_types + of_key
    return same.where(of_query == of_key, other)


def bucket(distance, num_buckets, max_distance):
    """Return T5's bidirectional bucket of each `distance` = key position - query position.

    Half of the buckets are for positive distances; in each half the first half is exact, the rest
    logarithmic. In float32 and in the order of operations of `transformers`' `_position_bucket`.
    """
    half = num_buckets // 2
    exact = half // 2
    size = distance.abs()
    # Differs from HF: log(0), which HF computes and then does not use, is avoided.
    ratio = (size.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    logarithmic = (exact + (ratio * (half - exact)).int()).clamp(max=half - 1)
    return size.where(size < exact, logarithmic.long()) + (distance > 0).long() * half
