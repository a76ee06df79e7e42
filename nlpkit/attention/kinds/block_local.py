"""Each token sees its own block of `block` tokens, with `causal` only the left of it.

The local attention of Liu et al. 2018 (arXiv:1801.10198, sec. 4.2.4): the sequence is cut into
blocks, and nothing passes between them. What is left over is a last, shorter block. `causal` is the
form for models that write; it is also FA1 of the kind `fixed`.
"""

from pydantic import Field

from nlpkit.attention.pieces import Piece
from nlpkit.config import FrozenConfig

VISIBILITY = "bidirectional"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N · block"


class Config(FrozenConfig):
    """The size of the blocks; that of Liu et al. is the default."""

    block: int = Field(256, ge=1, description="Tokens in a block.")
    causal: bool = Field(False, description="Whether a token sees only the left of its block.")


def visibility(config):
    """Return which tokens a state may depend on."""
    return "causal" if config.causal else VISIBILITY


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where query and key are in the same block."""
    same = q["position"] // config.block == k["position"] // config.block
    return same & (k["position"] <= q["position"]) if config.causal else same


def pieces(config, q, k):
    """Return one piece, the block or the left of it."""
    start = q["position"] - q["position"] % config.block
    return [Piece(start, q["position"] if config.causal else start + config.block - 1)]


def pairs(config, lengths):
    """Return the number of pairs in the blocks."""

    def inside(size):
        return size * (size + 1) / 2 if config.causal else size**2

    cut = [divmod(length, config.block) for length in lengths]
    return float(sum(whole * inside(config.block) + inside(rest) for whole, rest in cut))
