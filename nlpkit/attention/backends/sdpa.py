"""`scaled_dot_product_attention`, document by document; runs of equal length go in one call.

The bias of a document is made once a step and shared by the layers, so that autograd sums its
gradient and the table's is computed once.
S sequences of length L, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention import Request


def refuses(request: Request) -> str | None:
    """Return None: every kind can be given as a mask and a bias."""
    return None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by one call of torch for each run of sequences of equal length."""
    runs = [(length, len(list(same))) for length, same in groupby(request.layout.lengths)]
    sizes = [length * count for length, count in runs]
    masks = _masks(request, runs)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(runs, masks, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
        outs = []
        for (length, count), mask, *parts_qkv in parts:
            shape = (count, length, request.heads, request.head_dim)
            q, k, v = (x.reshape(shape).transpose(1, 2) for x in parts_qkv)  # (S, H, L, D)
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=request.dropout,
                is_causal=request.kind.CAUSAL and mask is None,
                scale=request.scale,
            )
            outs.append(out.transpose(1, 2).reshape(length * count, *shape[2:]))
        return torch.cat(outs)

    return attend


def _masks(request: Request, runs: list[tuple[int, int]]) -> list[Tensor | None]:
    """Return for each run what is added to the scores, (S, H or 1, L, L), or None."""
    if (request.kind.CAUSAL or request.kind.FULL) and request.table is None:
        return [None] * len(runs)
    masks: list[Tensor | None] = []
    start = 0
    for length, count in runs:
        index = torch.arange(start, start + length * count, device=request.device)
        index = index.view(count, 1, length)
        queries, keys = index[..., None], index[..., None, :]  # (S, 1, L, 1), (S, 1, 1, L)
        visible = request.visible(queries, keys)
        if request.table is None:
            masks.append(visible)
        else:
            rows = request.bias_index(queries, keys).transpose(0, 1).reshape(1, -1)
            bias = request.table.T.gather(1, rows.expand(request.heads, -1)).to(request.dtype)
            bias = bias.view(request.heads, count, length, length).transpose(0, 1)
            masks.append(bias.masked_fill(~visible, -torch.inf))
        start += length * count
    return masks
