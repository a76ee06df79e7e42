"""Each token sees itself and the tokens to its left, with a learned bias for their distance.

The attention of T5's decoder (Raffel et al. 2020, arXiv:1910.10683, sec. 2.1): one bias for each
head and bucket of distances, added to the scores, the same in all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.attention.forms.buckets import Buckets, bucket_table, find_bucket
from nlpkit.config import Size
from nlpkit.contracts.kind import ParamSpec, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N² / 2"


class Config(Buckets):
    """The rows of the bias table; the defaults are T5's."""

    BIDIRECTIONAL: ClassVar[bool] = False

    num_buckets: Size = Field(32, ge=4, description="distance buckets, all for keys to the left")


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the shape of the bias table, which all layers share."""
    return {"table": ParamSpec((config.num_buckets, heads), shared=True)}


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is not to the right of the query."""
    return k["position"] <= q["position"]


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of pairs on and below the diagonal."""
    return sides.count_left(lengths)


def buffers(config: Config) -> dict[str, Tensor]:
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max."""
    return {"buckets": bucket_table(config.num_buckets, config.max_distance, False)}


def bias_index(config: Config, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens) -> Tensor:
    """Return the row of the bias table for each pair of query and key."""
    return find_bucket(buffers["buckets"], config.max_distance, q, k)
