"""Causal, but the tokens of sequences marked as `full` see all of their sequence.

The attention of GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159). Without the field it is
causal attention, so that the model is a plain causal one in transformers.

N packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Kernel, Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
KERNEL_WITHOUT_FIELDS: Kernel = "causal"
FIELDS = ("position", "length", "full")
OPTIONAL = ("full",)
COST = "N² / 2, N² in full sequences"


class Config(FrozenConfig):
    """No settings: the objective says which sequences are full."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is not to the right, or the query's sequence is full."""
    seen = k["position"] <= q["position"]
    return seen | q["full"] if "full" in q else seen


def ranges(config: Config, q: Tokens, k: Tokens) -> Sequence[Range]:
    """Return the mask as one range: up to the query, or to the end of a full sequence."""
    position = q["position"]
    last = position.where(~q["full"], q["length"] - 1) if "full" in q else position
    return [Range(position.new_zeros(position.shape), last)]
