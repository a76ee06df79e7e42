"""What kinds share that see to both sides or to the left alone, as their setting `causal` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor


class SidesConfig(FrozenConfig):
    """Which side a token sees."""

    causal: bool | None = Field(
        None, description="whether the right is hidden; null: as in the family's own kind"
    )


def visibility(config: SidesConfig) -> Visibility:
    """Return which tokens a state may depend on; without a family, those to the left."""
    return "bidirectional" if config.causal is False else "causal"


def is_causal(config: SidesConfig) -> bool:
    """Return whether a token sees nothing to its right."""
    return config.causal is not False


def mask(config: SidesConfig, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the query may see the key."""
    return see_left(config, q, k) if is_causal(config) else see_all(config, q, k)


def see_left(config: FrozenConfig, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is not to the right of the query."""
    return k["position"] <= q["position"]


def see_all(config: FrozenConfig, q: Tokens, k: Tokens) -> Tensor:
    """Return True for every pair of query and key."""
    return (q.index == q.index) & (k.index == k.index)
