"""Attention whose heads are of several kinds: each kind is prepared alone, for its share of heads.

So backends and caches need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from nlpkit.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention import Attend
    from nlpkit.attention.contract import Choice


class PrepareShare(Protocol):
    """`attention.prepare` with all but these arguments."""

    def __call__(self, choice: Choice, *, heads: int, role: str) -> Attend:
        """Return the attention of a share of the heads."""


def refuses(choice: Choice, heads: int) -> str | None:
    """Return why the heads cannot be shared among the kinds that the choice is made of, or None."""
    if choice.shares and heads % len(choice.shares):
        return f"it shares the heads among {len(choice.shares)} kinds, and there are {heads} heads"
    return None


def prepared(
    choice: Choice, heads: int, role: str, prepare_share: PrepareShare
) -> tuple[Sequence[Attend], Callable[..., Tensor]]:
    """Return the attention of each share, and the function that runs them and joins their heads.

    Each share has its own role in the cache.

    Raises:
        Unsupported: the number of heads is no multiple of the number of shares.
    """
    if reason := refuses(choice, heads):
        raise Unsupported(f"attention kind {choice.kind}: {reason}")
    size = heads // len(choice.shares)
    attends = [
        prepare_share(share, heads=size, role=f"{role}, heads from {number * size}")
        for number, share in enumerate(choice.shares)
    ]

    def run(
        q: Tensor, k: Tensor | None, v: Tensor | None, tensors: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        import torch

        outs = []
        for number, attend in enumerate(attends):
            own = slice(number * size, (number + 1) * size)
            keys, values = (None if x is None else x[:, own] for x in (k, v))
            outs.append(attend(q[:, own], keys, values, tensors))
        return torch.cat(outs, dim=1)

    return attends, run
