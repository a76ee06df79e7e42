"""Each token sees all tokens of its sequence (Vaswani et al. 2017, arXiv:1706.03762)."""

from nlpkit.attention.forms import sides
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Kernel, Visibility

VISIBILITY: Visibility = "bidirectional"
KERNEL: Kernel = "full"
COST = "N²"
mask = sides.see_all


class Config(FrozenConfig):
    """Full attention has no settings."""
