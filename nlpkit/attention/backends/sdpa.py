"""torch's `scaled_dot_product_attention`; one call for each run of documents of equal length.

On CPUs, products of 16-bit numbers need a compiled kernel for each new shape. So 16-bit inputs of
documents of many lengths are computed in float32, which is faster there, and exact.

The bias of a document is computed once per step and shared by the layers. Autograd sums its
gradient over the layers, so that the gradient of the table is computed once.
S sequences of L queries and K keys, H heads of queries, G of keys, D width of a head.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.contracts.request import Request

GROUPED = True
_FEW_SHAPES = 2  # pairs of lengths whose kernels cost less than products in float32


def refuses(request: Request) -> str | None:
    """Return None: torch supports every mask and every bias."""
    return None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention with one call of torch for each run of sequences of equal length."""
    pairs = zip(request.layout.lengths, request.keys.lengths, strict=True)
    runs = [(*lengths, len(list(same))) for lengths, same in groupby(pairs)]
    if request.device.type == "cpu" and request.dtype.itemsize == 2:
        shapes = {(length, keys) for length, keys, _ in runs}
        if len(shapes) > _FEW_SHAPES:
            exact = prepare(replace(request, dtype=torch.float32))

            @torch.autocast("cpu", enabled=False)
            def attend_exactly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return exact(q.float(), k.float(), v.float()).to(request.dtype)

            return attend_exactly
    sizes = [length * count for length, _, count in runs]
    key_sizes = [length * count for _, length, count in runs]
    masks = _make_masks(request, runs)
    heads, key_heads, width = request.heads, request.key_heads, request.head_dim

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        split = q.split(sizes), k.split(key_sizes), v.split(key_sizes)
        outs = []
        for (length, keys, count), mask, q, k, v in zip(runs, masks, *split, strict=True):
            out = F.scaled_dot_product_attention(
                q.reshape(count, length, heads, width).transpose(1, 2),  # (S, H, L, D)
                k.reshape(count, keys, key_heads, width).transpose(1, 2),
                v.reshape(count, keys, key_heads, width).transpose(1, 2),
                attn_mask=mask,
                dropout_p=request.dropout,
                is_causal=request.kernel == "causal",
                scale=request.scale,
                enable_gqa=heads != key_heads,
            )
            outs.append(out.transpose(1, 2).reshape(length * count, heads, width))
        return torch.cat(outs)

    return attend


def _make_masks(request: Request, runs: list[tuple[int, int, int]]) -> list[Tensor | None]:
    """Return the mask of each run: bool (S, 1, L, K), a bias with -inf (S, H, L, K), or None."""
    if request.kernel:
        return [None] * len(runs)
    masks: list[Tensor | None] = []
    start = first_key = 0
    for length, keys, count in runs:
        q = torch.arange(start, start + length * count, device=request.device)
        k = torch.arange(first_key, first_key + keys * count, device=request.device)
        q, k = q.view(count, 1, length, 1), k.view(count, 1, 1, keys)
        visible = request.visible(q, k)
        if request.table is None:
            masks.append(visible)
        else:
            rows = request.bias_index(q, k).transpose(0, 1).reshape(1, -1)
            bias = request.table.T.gather(1, rows.expand(request.heads, -1)).to(request.dtype)
            bias = bias.view(request.heads, count, length, keys).transpose(0, 1)
            masks.append(bias.masked_fill(~visible, -torch.inf))
        start += length * count
        first_key += keys * count
    return masks
