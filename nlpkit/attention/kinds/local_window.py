"""Each token sees itself and the `window` - 1 tokens to its left (Child et al. 2019).

The local half of the Sparse Transformer (arXiv:1904.10509, sec. 4.2). GPT-3 alternates it with
`causal` over the layers and calls it locally banded (Brown et al. 2020, arXiv:2005.14165, sec.
2.1), without saying how wide; GPT-Neo, which rebuilt GPT-3, has 256 tokens.
"""

from pydantic import Field

from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N · window"


class Config(FrozenConfig):
    """How far a token sees."""

    window: int = Field(256, ge=1, description="Tokens that a token sees, itself included.")


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where the key is not to the right, and not too far to the left."""
    distance = q["position"] - k["position"]
    return (distance >= 0) & (distance < config.window)


def keys_in_sight(config):
    """Return how many keys to the left and to the right of itself a query sees."""
    return config.window - 1, 0


def pairs(config, lengths):
    """Return the number of pairs inside the window."""
    inside = [(length, min(length, config.window)) for length in lengths]
    return float(sum(w * (w + 1) / 2 + (length - w) * w for length, w in inside))
