"""FlexAttention (Dong et al. 2024, arXiv:2412.05496): any mask and bias in one compiled kernel.

The block mask skips tiles without a visible pair (other documents, later tokens). FlexAttention is
compiled on CUDA. On CPU it runs uncompiled, slowly, and only forward; this serves to test the code.
"""

import importlib.util
import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from nlpkit.contracts.request import Request
from nlpkit.errors import not_installed

GROUPED = True
_MAX_GRAPHS = 64  # of a function; torch's own limit is 8


def refuses(request: Request) -> str | None:
    """Return why FlexAttention does not support this request, or None."""
    if request.dropout:
        return "dropout on the probabilities"
    if request.device.type == "cuda":
        if request.head_dim < 16:
            return "head width below 16"
        if torch.cuda.get_device_capability(request.device) < (7, 0):
            return "needs a Volta GPU or newer"  # as Triton does
        return None if _has_triton() else not_installed("triton")
    if request.device.type != "cpu":
        return f"made for CUDA, not for {request.device.type}"
    return "no backward pass on CPU" if request.training else None


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Each kind has graphs of its own, for training, for evaluation, for packs of one block and of
    # more. Beyond the limit torch computes all pairs uncompiled, with one warning.
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # from torch 2.13 on
        options: dict[str, Any] = {"recompile_limit": _MAX_GRAPHS}
        return torch.compile(function, **options)
    return torch.compile(function)


def _warn_of_random_order() -> None:
    """Say what torch does not: torch's kernel adds up the gradient of a bias by atomic additions.

    `zeros_and_scatter_lowering` in torch/_inductor/kernel/flex/common.py, torch 2.13.
    """
    if torch.are_deterministic_algorithms_enabled():
        warnings.warn(
            "FlexAttention sums the gradient of a learned bias in random order, so two runs differ "
            "in their last bits; attention.backend: reference is deterministic, and slow",
            stacklevel=3,
        )


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention over the complete pack as one sequence with a block mask."""
    on_gpu = request.device.type == "cuda"
    run: Any = _compiled(flex_attention) if on_gpu else flex_attention
    table = request.table
    if on_gpu and request.training and table is not None:
        _warn_of_random_order()
    # Computed here, because torch does not compile a cached property: the mask of all pairs would
    # be made tensor by tensor.
    query_ids, key_ids = request.layout.document_ids, request.keys.document_ids

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return request.mask(q, k) & (query_ids[q] == key_ids[k])

    def biased(score: Tensor, _batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert table is not None
        return score + table[request.bias_index(q, k), head]

    blocks = (_compiled(create_block_mask) if on_gpu else create_block_mask)(
        visible, None, None, request.layout.total, request.keys.total, device=request.device
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]  # (1, H, N, D)
        out = run(
            *heads_first,
            score_mod=None if table is None else biased,
            block_mask=blocks,
            scale=request.scale,
            enable_gqa=request.heads != request.key_heads,
        )
        return out[0].transpose(0, 1)

    return attend
