"""Each token sees itself and the `window` - 1 tokens to its left, or as many to both sides.

To the left it is the local half of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509,
sec. 4.2). GPT-3 alternates it with `causal` and calls it locally banded (Brown et al.
2020, arXiv:2005.14165, sec. 2.1), without saying how wide; GPT-Neo, which rebuilt GPT-3, has 256
tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.contracts.kind import Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N · window"
visibility = sides.visibility


class Config(sides.SidesConfig):
    """How far a token sees."""

    causal: bool | None = Field(True, description="whether a token sees nothing to its right")
    window: int = Field(256, ge=1, description="tokens seen to a side, the token itself included")


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is near the query, and on a side that it sees."""
    near = (q["position"] - k["position"]).abs() < config.window
    return near & sides.mask(config, q, k)


def keys_in_sight(config: Config) -> tuple[int, int]:
    """Return how many keys to the left and to the right of itself a query sees."""
    return config.window - 1, 0 if sides.is_causal(config) else config.window - 1
