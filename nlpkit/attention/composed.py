"""Attention that is no call of one backend: a kind's own computation, and groups of heads.

Each kind of a group is prepared alone, for its heads, so backends and caches need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nlpkit.attention import Attend, reasons, repeat_heads
from nlpkit.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.cache import Cache, CacheKey
    from nlpkit.attention.choice import AttentionChoice
    from nlpkit.contracts.kind import Learned
    from nlpkit.contracts.request import Heads, Request


def prepare_own(
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


def prepare_groups(
    choice: AttentionChoice, heads: Heads, role: str, prepare_group: Callable[..., Attend]
) -> Attend:
    """Return the attention that runs that of each group, and joins their heads.

    `prepare_group` is `attention.prepare` with all but kind, heads and role: each group has a role
    of its own in the cache.

    Raises:
        Unsupported: the number of heads is no multiple of the number of groups.
    """
    if reason := choice.refuses_heads(heads.count, heads.key_heads):
        raise Unsupported(f"attention kind {choice.kind}: {reason}")
    groups, key_heads = len(choice.head_groups), heads.key_heads or heads.count
    size, key_size = heads.count // groups, max(key_heads // groups, 1)
    of_group = replace(heads, count=size, key_heads=None if size == key_size else key_size)
    attends = [
        prepare_group(kind, of_group, role=f"{role}, heads from {number * size}")
        for number, kind in enumerate(choice.head_groups)
    ]

    def run(
        q: Tensor, k: Tensor | None, v: Tensor | None, tensors: Learned | None = None
    ) -> Tensor:
        import torch

        outs = []
        for number, attend in enumerate(attends):
            first = number * key_heads // groups
            keys, values = (None if x is None else x[:, first : first + key_size] for x in (k, v))
            outs.append(attend(q[:, number * size : (number + 1) * size], keys, values, tensors))
        return torch.cat(outs, dim=1)

    return Attend("+".join({a.backend: None for a in attends}), reasons(attends), run)
