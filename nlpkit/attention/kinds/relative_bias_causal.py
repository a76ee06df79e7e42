"""Each token sees itself and the tokens to its left, with a learned bias for their distance.

The attention of T5's decoder (Raffel et al. 2020, arXiv:1910.10683, sec. 2.1): one bias for each
head and bucket of distances, added to the scores, the same in all layers.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.attention.contract import Learned
from nlpkit.attention.kinds._buckets import Buckets, row, table_of_buckets
from nlpkit.config import Size

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N² / 2"


class Config(Buckets):
    """The rows of the bias table; the defaults are T5's."""

    BIDIRECTIONAL: ClassVar[bool] = False

    num_buckets: Size = Field(32, ge=4, description="Distance buckets, all for keys to the left.")


def tensors(config, heads, head_dim):
    """Return the shape of the bias table, which all layers share."""
    return {"table": Learned((config.num_buckets, heads), shared=True)}


def mask(config, q, k):
    """Return True where the key is not to the right of the query."""
    return k["position"] <= q["position"]


def pairs(config, lengths):
    """Return the number of pairs on and below the diagonal."""
    return sum(length * (length + 1) / 2 for length in lengths)


def buffers(config):
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max."""
    return {"buckets": table_of_buckets(config.num_buckets, config.max_distance, False)}


def bias_index(config, buffers, q, k):
    """Return the row of the bias table for each pair of query and key."""
    return row(buffers["buckets"], config.max_distance, q, k)
