"""Each token sees a range of places of its sequence, which the objective gives.

With it one model has the four masks of UniLM (Dong et al. 2019, arXiv:1905.03197, sec. 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position", "first", "last")
COST = "N² at most"


class Config(FrozenConfig):
    """No settings: the objective gives the ranges."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key's place is in the query's range."""
    return (q["first"] <= k["position"]) & (k["position"] <= q["last"])
