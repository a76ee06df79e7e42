"""A prefix-LM: every token sees the context; any other also sees itself and those to its left.

UniLM's mask from source to target (Dong et al. 2019, arXiv:1905.03197), and that of GLM's blanks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "prefix"
FIELDS = ("context", "position")
COST = "N² at most"


class Config(FrozenConfig):
    """No settings: the objective says which tokens are context."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is context, or left of a query that is none."""
    return k["context"] | (~q["context"] & (k["position"] <= q["position"]))
