"""Each token sees itself and the tokens to its left (Radford et al. 2018, GPT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Kernel, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
KERNEL: Kernel = "causal"
FIELDS = ("position",)
COST = "N² / 2"


class Config(FrozenConfig):
    """Causal attention has no settings."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is not to the right of the query."""
    return k["position"] <= q["position"]
