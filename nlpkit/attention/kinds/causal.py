"""Each token sees itself and the tokens to its left (Radford et al. 2018, GPT)."""

from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = "causal"
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N² / 2"


class Config(FrozenConfig):
    """Causal attention has no settings."""


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where the key is not to the right of the query."""
    return k["position"] <= q["position"]


def pairs(config, lengths):
    """Return the number of pairs on and below the diagonal."""
    return sum(length * (length + 1) / 2 for length in lengths)
