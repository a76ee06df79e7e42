"""Attention-free transformer where each token sees its whole document, over packs.

For each channel the weight of key j for token i is exp(k_j + w_ij). The largest key of the document
and the largest w of the token are subtracted from the exponents.

N tokens of the pack, n of a document, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention.aft_form import Biases


def mean(
    k: Tensor, v: Tensor, lengths: Sequence[int], window: int | None, biases: Biases | None
) -> Tensor:
    """Return the mean (N, C) of the values of each token's document; `biases` None: w = 0."""
    return torch.cat(list(_documents(k, v, lengths, window, biases)))


def _documents(
    k: Tensor, v: Tensor, lengths: Sequence[int], window: int | None, biases: Biases | None
) -> Iterator[Tensor]:
    for keys, values in zip(k.split(lengths), v.split(lengths), strict=True):
        weights = (keys - keys.detach().amax(0)).exp()
        both = torch.cat([weights * values, weights], 1)  # (n, 2 C)
        if biases is None:
            sums = both.sum(0, keepdim=True).expand(len(keys), -1)
        elif window is None:
            place = torch.arange(len(keys), device=k.device)
            w = biases(place, place)
            sums = (w - w.detach().amax(1, keepdim=True)).exp() @ both
        else:
            sums = both.sum(0) + _in_window(both, window, biases)
        above, below = sums.chunk(2, 1)
        yield above / below


def _in_window(both: Tensor, window: int, biases: Biases) -> Tensor:
    """Return the sums (n, 2 C) of (exp(w) - 1) both over a window, for blocks of queries.

    With the sum over the document, in which w counts as 0, these are all weights: so Zhai et al.
    2021 write their convolutional form.
    """
    count = -(-len(both) // window)
    place = torch.arange(count * window, device=both.device).unflatten(0, (count, window))
    last = len(both) - 1
    spread = torch.arange(3 * window, device=both.device) - window
    seen = place[:, :1] + spread  # (blocks, 3 window): the block and those beside it
    w = biases(place.clamp(max=last), seen.clamp(0, last))
    w = w * ((seen >= 0) & (seen <= last))[:, None]
    near = torch.expm1(w) @ F.pad(both, (0, 0, window, 2 * window))[seen + window]
    return near.flatten(0, 1)[: len(both)]
