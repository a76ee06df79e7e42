"""T5's buckets of distances between tokens, for kinds with a learned bias (Raffel et al. 2020).

arXiv:1910.10683, sec. 2.1. Near distances have a bucket each, the buckets of far ones grow
logarithmically, and all distances from `max_distance` on share the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from nlpkit.config import FrozenConfig, Size
from nlpkit.contracts.kind import ParamSpec, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Buckets(FrozenConfig):
    """The rows of a bias table; the defaults are T5's."""

    BIDIRECTIONAL: ClassVar[bool] = True

    num_buckets: Size = Field(32, ge=4, description="distance buckets, half for keys to the right")
    max_distance: int = Field(128, ge=2, description="distance from which the last bucket is used")

    @model_validator(mode="after")
    def _check_exact(self) -> Self:
        parts = 4 if self.BIDIRECTIONAL else 2
        exact = self.num_buckets // parts
        if self.max_distance <= exact:
            what = f"num_buckets // {parts} = {exact}, the distances with a bucket of their own"
            raise ValueError(f"max_distance: {self.max_distance} must be larger than {what}")
        return self


def bucket(
    distance: Tensor, num_buckets: int, max_distance: int, bidirectional: bool = True
) -> Tensor:
    """Return T5's bucket of each `distance` = key position - query position.

    In the bidirectional form half of the buckets are for positive distances; in the other one,
    where keys to the right are hidden, these have bucket 0. In each part, the first half of the
    buckets is exact, the second half logarithmic. Type (float32) and order of operations are those
    of `transformers`' `_relative_position_bucket`.
    """
    part = num_buckets // 2 if bidirectional else num_buckets
    exact = part // 2
    size = distance.abs() if bidirectional else (-distance).clamp(min=0)
    # Differs from HF: it avoids log(0), which HF computes but does not use.
    ratio = (size.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    logarithmic = (exact + (ratio * (part - exact)).int()).clamp(max=part - 1)
    found = size.where(size < exact, logarithmic.long())
    return found + (distance > 0).long() * part if bidirectional else found


def tensors(config: Buckets, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the shape of the bias table, which all layers share."""
    return {"table": ParamSpec((config.num_buckets, heads), shared=True)}


@lru_cache(maxsize=8)
def buffers(config: Buckets) -> dict[str, Tensor]:
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max.

    They are computed on the CPU, because rounding of the logarithm on another device could shift
    the boundary of a bucket.
    """
    import torch

    most = config.max_distance
    distance = torch.arange(-most, most + 1)
    return {"buckets": bucket(distance, config.num_buckets, most, config.BIDIRECTIONAL)}


def bias_index(config: Buckets, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens) -> Tensor:
    """Return the row of the bias table, the bucket of the distance of query and key."""
    most = config.max_distance
    # All distances from max_distance on share the last bucket, so clamping changes nothing.
    distance = (k["position"] - q["position"]).clamp(-most, most)
    return buffers["buckets"][distance + most]
