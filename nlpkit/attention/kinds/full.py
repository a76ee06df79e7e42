"""Each token sees all tokens of its sequence (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.attention.forms import sides
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Kernel, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "bidirectional"
KERNEL: Kernel = "full"
COST = "N²"


class Config(FrozenConfig):
    """Full attention has no settings."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True for every pair of query and key."""
    return sides.see_all(q, k)
