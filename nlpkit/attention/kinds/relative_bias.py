"""Each token sees all tokens, with a learned bias for their distance (T5's encoder).

Raffel et al. 2020, arXiv:1910.10683, sec. 2.1: one bias for each head and bucket of distances,
added to the scores, the same in all layers.
"""

from pydantic import Field, model_validator

from nlpkit.attention.contract import Learned
from nlpkit.attention.kinds._buckets import row, table_of_buckets
from nlpkit.config import FrozenConfig

VISIBILITY = "bidirectional"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None


class Config(FrozenConfig):
    """The rows of the bias table; the defaults are T5's."""

    num_buckets: int = Field(32, ge=4, description="Distance buckets, half for keys to the right.")
    max_distance: int = Field(128, ge=2, description="Distance from which the last bucket is used.")

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
    """Return the shape of the bias table, which all layers share."""
    return {"table": Learned((config.num_buckets, heads), shared=True)}


def mask(config, q, k):
    """Return True for every pair of query and key."""
    return (q["position"] >= 0) & (k["position"] >= 0)


def pairs(config, lengths):
    """Return the number of all pairs."""
    return float(sum(length**2 for length in lengths))


def buffers(config):
    """Return `buckets`, (2 * max_distance + 1,): the row for each distance from -max to +max."""
    return {"buckets": table_of_buckets(config.num_buckets, config.max_distance, True)}


def bias_index(config, buffers, q, k):
    """Return the row of the bias table for each pair of query and key."""
    return row(buffers["buckets"], config.max_distance, q, k)
