"""What a kind says about its mask, so that a backend computes only the pairs that are seen.

Most sparse masks are few ranges of positions: a window, a block, every L-th token. Each is a piece.
The pieces of a kind have no pair in common and together are its mask, so softmax over the mask is
softmax over each piece, weighted by their sums of exponentials.

N queries, K keys of a pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # kinds are free of torch
    from torch import Tensor

    from nlpkit.attention.contract import Tokens


class Piece(NamedTuple):
    """Each query sees the keys of its own class from position `first` to position `last`.

    A query whose `last` is lower than its `first` sees nothing in this piece. No query sees a key
    of class -1. Without classes all tokens are of one class.
    """

    first: Tensor  # (N,)
    last: Tensor  # (N,)
    query_class: Tensor | None = None  # (N,)
    key_class: Tensor | None = None  # (K,)


@runtime_checkable
class PiecewiseKind(Protocol):
    """A mask kind that can be cut into pieces, with any of its settings."""

    def pieces(self, config: Any, q: Tokens, k: Tokens) -> Sequence[Piece]:
        """Return the pieces of the mask for all queries `q` (N,) and all keys `k` (K,) of a pack.

        They are meant within each sequence: a query never sees keys of another one.
        """
