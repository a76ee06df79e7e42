"""Each token sees all tokens, with a learned bias for their distance (T5's encoder).

Raffel et al. 2020, arXiv:1910.10683, sec. 2.1: one bias for each head and bucket of distances,
added to the scores, the same in all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nlpkit.attention.forms import sides
from nlpkit.attention.forms.buckets import Buckets, bucket_table, find_bucket
from nlpkit.contracts.kind import ParamSpec, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position",)
COST = "N²"


class Config(Buckets):
    """The rows of the bias table; the defaults are T5's."""


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the shape of the bias table, which all layers share."""
    return {"table": ParamSpec((config.num_buckets, heads), shared=True)}


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True for every pair of query and key."""
    return (q["position"] >= 0) & (k["position"] >= 0)


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of all pairs."""
    return sides.count_all(lengths)


def buffers(config: Config) -> dict[str, Tensor]:
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max."""
    return {"buckets": bucket_table(config.num_buckets, config.max_distance, True)}


def bias_index(config: Config, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens) -> Tensor:
    """Return the row of the bias table for each pair of query and key."""
    return find_bucket(buffers["buckets"], config.max_distance, q, k)
