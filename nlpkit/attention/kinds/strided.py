"""Each token sees a window to its left and, in it or beyond, every `stride`-th token.

Strided attention of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509, sec. 4.3). SA1 is
the window, SA2 the tokens at distances 0, stride, 2 * stride, … to the left. `both` is the paper's
merged head, `split` its multi-head form (sec. 5.1): SA1 in the first half of the heads, SA2 in the
others. Layers in turn are `attention: {layers: [{kind: strided, pattern: sa1}, …]}`.

The paper's formula gives SA1 stride + 1 tokens; its code, as here, gives `stride` of them, the
token itself included. With stride near the square root of the length the cost is N * sqrt(N).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N · (stride + N / (2 · stride))"


class Config(FrozenConfig):
    """The stride, and which of the two patterns a head sees."""

    stride: int = Field(128, ge=1, description="width of the window, and distance of SA2's tokens")
    pattern: Literal["sa1", "sa2", "both", "split"] = Field(
        "both", description="the window, the strides, both in each head, or each in half the heads"
    )


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is to the left, and near or a multiple of the stride away.

    With `split`, what the two halves of the heads see together.
    """
    distance = q["position"] - k["position"]
    near = distance < config.stride
    in_step = distance % config.stride == 0
    seen = {"sa1": near, "sa2": in_step}.get(config.pattern, near | in_step)
    return (distance >= 0) & seen


def head_groups(config: Config) -> tuple[Config, ...]:
    """Return SA1 and SA2 for the two halves of the heads if they are split."""
    if config.pattern != "split":
        return ()
    return tuple(config.model_copy(update={"pattern": pattern}) for pattern in ("sa1", "sa2"))


def keys_in_sight(config: Config) -> tuple[int, int] | None:
    """Return how many keys to the left and to the right of itself a query sees in SA1."""
    return (config.stride - 1, 0) if config.pattern == "sa1" else None


def ranges(config: Config, q: Tokens, k: Tokens) -> list[Range]:
    """Return the window, and for SA2 the tokens of the same position modulo the stride."""
    place, stride = q["position"], config.stride
    window = Range(first=place - stride + 1, last=place)
    # Beside the window, SA2 is what lies beyond it.
    nearest = place if config.pattern == "sa2" else place - stride
    steps = Range(place * 0, nearest, place % stride, k["position"] % stride)
    return {"sa1": [window], "sa2": [steps]}.get(config.pattern, [window, steps])
