"""The formula, dense over the complete pack, in float32: the reference of all tests."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.contracts.request import Request


def refuses(request: Request) -> str | None:
    """Return None: the reference supports every request, slowly, in O(N^2) memory."""
    return None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by the formula; the output of a row that sees no key is zero."""
    queries = torch.arange(request.layout.total, device=request.device)[:, None]
    keys = torch.arange(request.keys.total, device=request.device)[None, :]
    visible = request.visible(queries, keys)  # (N, K)

    @torch.autocast(request.device.type, enabled=False)
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        scores = torch.einsum("qhd,khd->hqk", q.to(exact), k.to(exact)) * request.scale
        if request.table is not None:
            bias = request.table[request.bias_index(queries, keys)]  # (N, K, H)
            scores = scores + bias.permute(2, 0, 1)
        scores = scores.masked_fill(~visible, torch.finfo(exact).min)
        # Multiplying by the mask makes the weights of a row that sees no key zero.
        weights = torch.softmax(scores, dim=-1) * visible
        weights = F.dropout(weights, request.dropout)
        return torch.einsum("hqk,khd->qhd", weights, v.to(exact)).to(q.dtype)

    return attend
