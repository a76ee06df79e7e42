"""Each token sees the next of the `groups` parts of its sequence, and the last part sees the first.

A sequence of n tokens is cut into M parts of ceil(n / M) tokens; queries of part i see keys of part
(i + 1) mod M. From a note without a paper. There the last part is padded to the size of the others.
Here it is shorter, and where the padding would be a whole part, M is the number of parts that hold
tokens. So every token sees at least one other, or itself in a sequence of one token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position", "length")
COST = "N² / groups"


class Config(FrozenConfig):
    """The number of parts."""

    groups: int = Field(4, ge=2, description="parts of a sequence (M)")


def _find_part(config: Config, q: Tokens) -> tuple[Tensor, Tensor]:
    """Return the size of the parts of each query's sequence, and the part that the query sees."""
    size = -(-q["length"] // config.groups)
    parts = -(-q["length"] // size)
    return size, (q["position"] // size + 1) % parts


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is in the part after the query's."""
    size, seen = _find_part(config, q)
    return k["position"] // size == seen


def ranges(config: Config, q: Tokens, k: Tokens) -> list[Range]:
    """Return one piece, the part that is seen."""
    size, seen = _find_part(config, q)
    return [Range(seen * size, (seen + 1) * size - 1)]
