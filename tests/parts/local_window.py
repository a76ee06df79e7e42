"""Each token sees itself and the `window` - 1 tokens before it (Child et al. 2019, sec. 4.2)."""

from pydantic import Field

from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = None
FIELDS = ("position",)
OPTIONAL = ()
SORT_FIRST = None


class Config(FrozenConfig):
    """How far a token sees."""

    window: int = Field(4, gt=0, description="tokens that are seen, itself included")


def tensors(config, heads, head_dim):
    """Return nothing: no tensor is learned."""
    return {}


def mask(config, q, k):
    """Return True where the key is not to the right and not too far to the left."""
    distance = q["position"] - k["position"]
    return (distance >= 0) & (distance < config.window)


def pairs(config, lengths):
    """Return the pairs inside the window."""
    return float(sum(min(i + 1, config.window) for n in lengths for i in range(n)))
