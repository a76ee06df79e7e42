"""Each token sees itself and the tokens to its left (Radford et al. 2018, GPT)."""

from nlpkit.attention.forms import sides
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Kernel, Visibility

VISIBILITY: Visibility = "causal"
KERNEL: Kernel = "causal"
FIELDS = ("position",)
COST = "N² / 2"
mask = sides.see_left


class Config(FrozenConfig):
    """Causal attention has no settings."""
