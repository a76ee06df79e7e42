"""States of generation that grow with the tokens: (B, T, …), zeros behind the end of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from nlpkit.contracts.kind import State
from nlpkit.contracts.request import Layout

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


def mask_left(layout: Layout, entries: int) -> Tensor:
    """Return (N, T), True where an entry of the sequence is not to the right of the token."""
    return torch.arange(entries, device=layout.device) <= layout.positions[:, None]
