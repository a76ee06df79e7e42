"""Each token sees the left of its own block, and the last tokens of every earlier block.

Fixed attention of the Sparse Transformer (Child et al. 2019, arXiv:1904.10509, sec. 4.3). FA1: a
token sees back to the start of its block of `stride` tokens. FA2: it sees the last `summary` tokens
(the paper's c) of each earlier block. `both` is the paper's merged head, `split` its multi-head
form (sec. 5.1): FA1 in the first half of the heads, FA2 in the others. The defaults are those of
the paper's model of text (enwik8), which it found better than `strided` there.

With FA2 alone the tokens of the first block see nothing, and attention gives zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N · (stride / 2 + summary · N / (2 · stride))"


class Config(FrozenConfig):
    """The blocks, how much of the earlier ones is seen, and which pattern a head sees."""

    stride: int = Field(128, ge=1, description="tokens in a block")
    summary: int = Field(32, ge=1, description="last tokens of a block that later blocks see (c)")
    pattern: Literal["fa1", "fa2", "both", "split"] = Field(
        "both", description="the block, the summaries, both in each head, or each in half of them"
    )

    def without_effect(self) -> dict[str, str]:
        return {"summary": "with pattern fa1, the block alone"} if self.pattern == "fa1" else {}

    @model_validator(mode="after")
    def _check_summary(self) -> Self:
        if self.summary > self.stride:
            raise ValueError(
                f"summary: {self.summary} is more than the {self.stride} tokens of a block (stride)"
            )
        return self


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is to the left in the block, or in the summary of an earlier one.

    With `split`, what the two halves of the heads see together.
    """
    stride = config.stride
    query_block, key_block = q["position"] // stride, k["position"] // stride
    own = (key_block == query_block) & (k["position"] <= q["position"])
    summaries = (key_block < query_block) & (k["position"] % stride >= stride - config.summary)
    return {"fa1": own, "fa2": summaries}.get(config.pattern, own | summaries)


def head_groups(config: Config) -> tuple[Config, ...]:
    """Return FA1 and FA2 for the two halves of the heads if they are split."""
    if config.pattern != "split":
        return ()
    return tuple(config.model_copy(update={"pattern": pattern}) for pattern in ("fa1", "fa2"))


def ranges(config: Config, q: Tokens, k: Tokens) -> list[Range]:
    """Return the own block, and the summaries, which are the only keys that have a class."""
    place, stride = q["position"], config.stride
    start = place - place % stride
    own = Range(first=start, last=place)
    is_summary = k["position"] % stride >= stride - config.summary
    summaries = Range(place * 0, start - 1, place * 0, is_summary.long() - 1)
    return {"fa1": [own], "fa2": [summaries]}.get(config.pattern, [own, summaries])
