"""The mask of a kind over whole sequences, to draw it and to count its pairs; N packed tokens."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from nlpkit.attention.choice import AttentionChoice, make_request
from nlpkit.contracts.kind import LAYOUT_FIELDS
from nlpkit.contracts.request import Heads, Layout
from nlpkit.errors import Unsupported

_ROWS = 512  # of a mask at once


def dense_mask(choice: AttentionChoice, layout: Layout) -> Tensor:
    """Return the mask of a pack, (N, N) bool: True where query (row) i may see key j.

    Raises:
        Unsupported: the kind has no mask.
    """
    if choice.module.mask is None:
        raise Unsupported(f"attention kind {choice.kind} has no mask to draw")
    return _mask_rows(choice, layout, 0, layout.total)


def _mask_rows(choice: AttentionChoice, layout: Layout, first: int, stop: int) -> Tensor:
    request = make_request(choice, Heads(1, 1, torch.float32, training=False), layout)
    index = torch.arange(layout.total, device=layout.device)
    return request.visible(index[first:stop, None], index[None, :])


def count_pairs(choice: AttentionChoice, lengths: Sequence[int]) -> float:
    """Return how many query-key pairs attention computes in sequences of these lengths.

    Where the kind does not say it, they are those of its mask; all, where the mask is the batch's.
    """
    kind, groups = choice.module, choice.head_groups
    if kind.pairs is not None:
        return kind.pairs(choice.config, lengths)
    if groups:  # the mean
        return sum(count_pairs(group, lengths) for group in groups) / len(groups)
    if {*kind.FIELDS} - {*kind.OPTIONAL, *LAYOUT_FIELDS}:
        return float(sum(length**2 for length in lengths))
    return float(sum(_count_visible(choice, length) for length in lengths))


@lru_cache(maxsize=4096)
def _count_visible(choice: AttentionChoice, length: int) -> int:
    layout = Layout([length])
    parts = range(0, length, _ROWS)
    return sum(int(_mask_rows(choice, layout, i, i + _ROWS).sum()) for i in parts)
