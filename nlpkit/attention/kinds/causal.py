"""Each token sees itself and what is left of it (Radford et al. 2018, GPT)."""

from nlpkit.config import FrozenConfig

FIELDS: tuple[str, ...] = ()
OPTIONAL: tuple[str, ...] = ()
CAUSAL = True
FULL = False
BIAS = False
LEADING: str | None = None


class Config(FrozenConfig):
    """Causal attention has no settings."""


def mask(fields, q, k):
    """Return True where the key `k` is not to the right of the query `q`."""
    return k <= q
