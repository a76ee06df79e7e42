"""Each token sees its own block of `block` tokens, or with `causal` what is left of it in there.

The local attention of Liu et al. 2018 (arXiv:1801.10198, sec. 4.2.4): the sequence is cut into
blocks, and nothing passes between them. What is left over is a last, shorter block. The causal form
is also FA1 of the kind `fixed`.
"""

from pydantic import Field

from nlpkit.attention.kinds import _either
from nlpkit.attention.pieces import Piece

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N · block"
visibility = _either.visibility


class Config(_either.EitherConfig):
    """The size of the blocks; that of Liu et al. is the default."""

    block: int = Field(256, ge=1, description="Tokens in a block.")


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where query and key are in the same block."""
    same = q["position"] // config.block == k["position"] // config.block
    return same & _either.mask(config, q, k)


def pieces(config, q, k):
    """Return one piece, the block or what is left of the query in it."""
    start = q["position"] - q["position"] % config.block
    last = q["position"] if _either.is_causal(config) else start + config.block - 1
    return [Piece(start, last)]


def pairs(config, lengths):
    """Return the number of pairs in the blocks."""

    blocks = [
        size
        for length in lengths
        for size in [config.block] * (length // config.block) + [length % config.block]
    ]
    return float(_either.pairs(config, blocks))
