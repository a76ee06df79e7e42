"""The `flash-attn` package (Dao 2023, FlashAttention-2, arXiv:2307.08691), variable lengths."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from nlpkit.attention.kernels import fused
from nlpkit.contracts.request import Request
from nlpkit.errors import not_installed

GROUPED = True


def refuses(request: Request) -> str | None:
    """Return why flash-attn does not support this request, or None."""
    if reason := fused.refuses(request):
        return reason
    if importlib.util.find_spec("flash_attn") is None:
        return not_installed("flash-attn")
    return None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention with one kernel call per pack."""
    from flash_attn import flash_attn_varlen_func

    queries, keys, window = request.layout, request.keys, request.window
    assert window is not None  # else refused

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attn_varlen_func(
            q,
            k,
            v,
            queries.cu_seqlens,
            keys.cu_seqlens,
            queries.max_length,
            keys.max_length,
            dropout_p=request.dropout,
            softmax_scale=request.scale,
            causal=window[1] == 0,
            window_size=window,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )

    return attend
