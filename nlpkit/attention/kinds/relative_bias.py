"""Each token sees all tokens, with a learned bias for their distance (T5's encoder).

Raffel et al. 2020, arXiv:1910.10683, sec. 2.1: one bias for each head and bucket of distances,
added to the scores, the same in all layers.
"""

from nlpkit.attention.contract import Learned
from nlpkit.attention.kinds._buckets import Buckets, row, table_of_buckets

VISIBILITY = "bidirectional"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N²"


class Config(Buckets):
    """The rows of the bias table; the defaults are T5's."""


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
