"""Each token sees a range of places of its sequence, which the objective gives.

With it one model has the four masks of UniLM (Dong et al. 2019, arXiv:1905.03197, sec. 2.2).
"""

from nlpkit.config import FrozenConfig

VISIBILITY = "bidirectional"
KERNEL = None
FIELDS: tuple[str, ...] = ("position", "first", "last")
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N² at most"


class Config(FrozenConfig):
    """No settings: the objective gives the ranges."""


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where the key's place is in the query's range."""
    return (q["first"] <= k["position"]) & (k["position"] <= q["last"])


def pairs(config, lengths):
    """Return all pairs, an upper bound."""
    return float(sum(length**2 for length in lengths))
