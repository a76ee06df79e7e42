"""Each token sees the left; in sequences with `both_sides`, a field that may be absent, all tokens.

With it one model learns from masked and from causal examples (Charpentier and Samuel 2024,
arXiv:2410.24159), and writes as a causal one.
"""

from nlpkit.config import FrozenConfig

VISIBILITY = "bidirectional"
KERNEL_WITHOUT_FIELDS = "causal"
FIELDS = ("position", "both_sides")
OPTIONAL = ("both_sides",)


class Config(FrozenConfig):
    """No settings."""


def mask(config, q, k):
    """Return True where the query may see the key."""
    seen = k["position"] <= q["position"]
    return seen | q["both_sides"] if "both_sides" in q else seen


def pairs(config, lengths):
    """Return all pairs, an upper bound."""
    return float(sum(length**2 for length in lengths))
