"""States of generation that grow with the tokens: (B, T, …), zeros behind the end of a sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nlpkit.contracts.kind import Learned, State
from nlpkit.contracts.request import Layout, Request

_STEP = 32  # tokens by which the memory of a sequence grows at least


def reserve(state: State, name: str, like: Tensor, count: int, longest: int) -> Tensor:
    """Return `state[name]` with room for `longest` entries of each of `count` sequences.

    An entry is shaped as those of `like` (N, …).
    """
    old = state.get(name)
    if old is not None and old.shape[1] >= longest:
        return old
    least = longest if old is None else max(longest, 2 * old.shape[1])
    new = like.new_zeros(count, -(-least // _STEP) * _STEP, *like.shape[1:])
    if old is not None:
        new[:, : old.shape[1]] = old
    state[name] = new
    return new


def store(state: State, name: str, new: Tensor, layout: Layout) -> Tensor:
    """Write the new tokens (N, …) of a pack to their places; return the state (B, T, …)."""
    held = reserve(state, name, new, len(layout.lengths), layout.longest)
    held[layout.document_ids, layout.positions] = new.detach()
    return held


def attend_each(
    request: Request, qkv: tuple[Tensor, Tensor, Tensor], tensors: Learned, state: State | None,
    dtype: torch.dtype, attend: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    """Return (N, H, D), sequence by sequence: `attend(request, q, k, v, past, tensors)`.

    It gets all keys and values of the sequence, in this type, and the place of its first query. Of
    generation they are in `state`: `keys` and `values` (B, T, H, D).
    """
    layout, own = request.layout, qkv[0].dtype
    past = layout.past or (0,) * len(layout.lengths)
    with torch.autocast(qkv[0].device.type, enabled=False):
        learned = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        queries, keys, values = (x.to(dtype).split(layout.lengths) for x in qkv)
        if state is not None:
            sizes = [old + len(new) for old, new in zip(past, queries, strict=True)]
            named = zip(("keys", "values"), qkv[1:], strict=True)
            held = [store(state, name, x, layout) for name, x in named]
            keys, values = (
                [x[:size].to(dtype) for x, size in zip(each, sizes, strict=True)] for each in held
            )
        each = zip(queries, keys, values, past, strict=True)
        return torch.cat([attend(request, *one, learned) for one in each]).to(own)
