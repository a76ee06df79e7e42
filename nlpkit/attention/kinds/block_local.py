"""Each token sees its own block of `block` tokens, or with `causal` what is left of it in there.

The local attention of Liu et al. 2018 (arXiv:1801.10198, sec. 4.2.4): the sequence is cut into
blocks, and nothing passes between them. What is left over is a last, shorter block. The causal form
is also FA1 of the kind `fixed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.contracts.kind import Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N · block"
visibility = sides.visibility


class Config(sides.SidesConfig):
    """The size of the blocks; that of Liu et al. is the default."""

    block: int = Field(256, ge=1, description="tokens in a block")


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where query and key are in the same block."""
    same = q["position"] // config.block == k["position"] // config.block
    return same & sides.mask(config, q, k)


def ranges(config: Config, q: Tokens, k: Tokens) -> list[Range]:
    """Return one piece, the block or what is left of the query in it."""
    start = q["position"] - q["position"] % config.block
    last = q["position"] if sides.is_causal(config) else start + config.block - 1
    return [Range(start, last)]
