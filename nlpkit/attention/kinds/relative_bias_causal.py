"""Each token sees itself and the tokens to its left, with a learned bias for their distance.

The attention of T5's decoder (Raffel et al. 2020, arXiv:1910.10683, sec. 2.1): one bias for each
head and bucket of distances, added to the scores, the same in all layers.
"""

from pydantic import Field, model_validator

from nlpkit.attention.contract import Learned
from nlpkit.attention.kinds._buckets import row, table_of_buckets
from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None


class Config(FrozenConfig):
    """The rows of the bias table; the defaults are T5's."""

    num_buckets: int = Field(32, ge=4, description="Distance buckets, all for keys to the left.")
    max_distance: int = Field(128, ge=2, description="Distance from which the last bucket is used.")

    @model_validator(mode="after")
    def _logarithmic(self):
        exact = self.num_buckets // 2
        if self.max_distance <= exact:
            raise ValueError(
                f"max_distance: {self.max_distance} must be larger than num_buckets // 2 = "
                f"{exact}, the distances with a bucket of their own"
            )
        return self


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
