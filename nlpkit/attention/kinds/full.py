"""Each token sees all tokens of its sequence (Vaswani et al. 2017, arXiv:1706.03762)."""

from nlpkit.config import FrozenConfig

VISIBILITY = "bidirectional"
KERNEL = "full"
FIELDS: tuple[str, ...] = ()
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N²"


class Config(FrozenConfig):
    """Full attention has no settings."""


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True for every pair of query and key."""
    return (q.index == q.index) & (k.index == k.index)


def pairs(config, lengths):
    """Return the number of all pairs."""
    return float(sum(length**2 for length in lengths))
