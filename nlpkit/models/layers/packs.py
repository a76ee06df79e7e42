"""The layout of a pack of sequences, and the states of some of its tokens.

N tokens of the pack, M selected rows, S sequences, C model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit import attention
from nlpkit.contracts.request import Layout

if TYPE_CHECKING:
    from nlpkit.attention.cache import Cache


def layout_within(
    lengths: Sequence[int],
    max_positions: int | None,
    device: torch.device,
    cache: Cache | None = None,
) -> Layout:
    """Return the layout of a pack; raise `ValueError` if a sequence is too long for the model."""
    layout = attention.layout_of(lengths, device, cache)
    if max_positions is not None and layout.longest > max_positions:
        raise ValueError(
            f"a sequence of {layout.longest} tokens; the model has {max_positions} positions"
        )
    return layout


def select_rows(states: Tensor, rows: Tensor | None) -> Tensor:
    """Return the `rows` (M,) of states (N, C), or all of them."""
    return states if rows is None else states[rows]


def first_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the first token of each sequence in a pack."""
    ends = torch.tensor(lengths, device=hidden.device).cumsum(0)
    return hidden[F.pad(ends[:-1], (1, 0))]


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence in a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]
