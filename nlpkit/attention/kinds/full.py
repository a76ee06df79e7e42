"""Everyone sees everyone in the same sequence (Vaswani et al. 2017, arXiv:1706.03762)."""

from nlpkit.config import FrozenConfig

FIELDS: tuple[str, ...] = ()
OPTIONAL: tuple[str, ...] = ()
CAUSAL = False
FULL = True
BIAS = False
LEADING: str | None = None


class Config(FrozenConfig):
    """Full attention has no settings."""


def mask(fields, q, k):
    """Return True for every pair of the indices `q`, `k`."""
    return (q == q) & (k == k)
