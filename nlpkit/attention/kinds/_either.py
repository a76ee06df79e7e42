"""What kinds share that see to both sides or to the left alone, as their setting `causal` says."""

from pydantic import Field

from nlpkit.config import FrozenConfig


class EitherConfig(FrozenConfig):
    """Which side a token sees."""

    causal: bool | None = Field(
        None,
        description="whether a token sees nothing to its right; null: as the family's own kind",
    )


def visibility(config):
    """Return which tokens a state may depend on; without a family, those to the left."""
    return "bidirectional" if config.causal is False else "causal"


def is_causal(config):
    """Return whether a token sees nothing to its right."""
    return config.causal is not False


def mask(config, q, k):
    """Return True where the query may see the key."""
    if is_causal(config):
        return k["position"] <= q["position"]
    return (q.index == q.index) & (k.index == k.index)


def pairs(config, lengths):
    """Return the number of visible pairs."""
    if is_causal(config):
        return sum(length * (length + 1) / 2 for length in lengths)
    return float(sum(length**2 for length in lengths))
