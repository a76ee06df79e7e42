"""Each token sees a window to its left and, in it or beyond, every `stride`-th token.

Strided attention of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509, sec. 4.3). SA1 is
the window, SA2 the tokens at distances 0, stride, 2 * stride, … to the left. `both` is the paper's
merged head, `split` its multi-head form (sec. 5.1): SA1 in the first half of the heads, SA2 in the
others. Layers in turn are `attention: {layers: [{kind: strided, pattern: sa1}, …]}`.

The paper's formula gives SA1 stride + 1 tokens; its code, as here, gives `stride` of them, the
token itself included. With stride near the square root of the length the cost is N * sqrt(N).
"""

from typing import Literal

from pydantic import Field

from nlpkit.attention.contract import Choice
from nlpkit.attention.pieces import Piece
from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
SORT_FIRST: str | None = None
COST = "N · (stride + N / (2 · stride))"


class Config(FrozenConfig):
    """The stride, and which of the two patterns a head sees."""

    stride: int = Field(128, ge=1, description="Width of the window, and distance of SA2's tokens.")
    pattern: Literal["sa1", "sa2", "both", "split"] = Field(
        "both", description="The window, the strides, both in each head, or each in half the heads."
    )


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def mask(config, q, k):
    """Return True where the key is to the left, and near or a multiple of the stride away.

    With `split`, what the two halves of the heads see together.
    """
    distance = q["position"] - k["position"]
    near = distance < config.stride
    in_step = distance % config.stride == 0
    seen = {"sa1": near, "sa2": in_step}.get(config.pattern, near | in_step)
    return (distance >= 0) & seen


def shares(config):
    """Return SA1 and SA2 for the two halves of the heads if they are split."""
    if config.pattern != "split":
        return ()
    halves = (config.model_copy(update={"pattern": pattern}) for pattern in ("sa1", "sa2"))
    return tuple(Choice(kind="strided", config=half) for half in halves)


def keys_in_sight(config):
    """Return how many keys to the left and to the right of itself a query sees in SA1."""
    return (config.stride - 1, 0) if config.pattern == "sa1" else None


def pieces(config, q, k):
    """Return the window, and for SA2 the tokens of the same position modulo the stride."""
    place, stride = q["position"], config.stride
    window = Piece(first=place - stride + 1, last=place)
    # Beside the window, SA2 is what lies beyond it.
    nearest = place if config.pattern == "sa2" else place - stride
    steps = Piece(place * 0, nearest, place % stride, k["position"] % stride)
    return {"sa1": [window], "sa2": [steps]}.get(config.pattern, [window, steps])


def pairs(config, lengths):
    """Return the number of pairs; with `split`, the mean of the two halves."""
    stride = config.stride

    def near(length):
        width = min(length, stride)
        return width * (width + 1) / 2 + (length - width) * width

    def in_step(length):  # the token at position i sees i // stride + 1 of them
        whole, rest = divmod(length, stride)
        return stride * whole * (whole + 1) / 2 + rest * (whole + 1)

    sa1, sa2 = sum(map(near, lengths)), sum(map(in_step, lengths))
    # Each token is in both patterns.
    merged = sa1 + sa2 - sum(lengths)
    return {"sa1": sa1, "sa2": sa2, "both": merged, "split": (sa1 + sa2) / 2}[config.pattern]
