"""Attention of the kinds that have their own computation, which no backend takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nlpkit.attention import Attend, repeat_heads
from nlpkit.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.cache import Cache, CacheKey
    from nlpkit.attention.choice import AttentionChoice
    from nlpkit.contracts.kind import Learned
    from nlpkit.contracts.request import Request


def prepare(
    choice: AttentionChoice, request: Request, backend: str, cache: Cache | None, key: CacheKey
) -> Attend:
    """Return what the layers of this step call; see `attention.prepare`.

    Raises:
        Unsupported: a backend is asked for, or the kind cannot compute this request.
    """
    kind, what = request.kind, f"attention kind {choice.kind}"
    if backend != "auto":
        raise Unsupported(takes_no_backend(choice))
    if request.dropout and not kind.DROPOUT:
        raise Unsupported(f"{what} has no probabilities for dropout")
    if request.is_cross and not kind.CROSS:
        raise Unsupported(f"{what} is for self-attention, not for cross attention")
    longest = request.layout.longest
    if choice.is_bounded and longest > (request.config.max_length or 0):
        raise Unsupported(
            f"a sequence of {longest} tokens; {what} is made for max_length "
            f"{request.config.max_length}"
        )
    states = cache.states(request, key) if cache is not None else None
    repeated = replace(request, key_heads=request.heads)
    repeated = replace(repeated, prepared=kind.prepare(repeated))

    def run(q: Tensor, k: Tensor, v: Tensor, tensors: Learned | None = None) -> Tensor:
        assert kind.attend is not None
        state = next(states) if states is not None else None
        k, v = (repeat_heads(x, request) for x in (k, v))
        return kind.attend(repeated, q, k, v, tensors or {}, state)

    return Attend("own", f"{choice.kind} has its own computation", run)


def takes_no_backend(choice: AttentionChoice) -> str:
    """Return what is said where a backend is named."""
    return (
        f"attention kind {choice.kind} has its own computation and takes no backend; set backend "
        "to auto"
    )
