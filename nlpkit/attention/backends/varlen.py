"""torch's own variable-length flash attention, `torch.nn.attention.varlen`."""

import inspect
from collections.abc import Callable

from torch import Tensor

from nlpkit.attention.kernels import fused
from nlpkit.contracts.request import Request

GROUPED = True
_NEEDED = {"scale", "window_size", "enable_gqa"}


def refuses(request: Request) -> str | None:
    """Return why torch's kernel does not support this request, or None."""
    if reason := fused.refuses(request):
        return reason
    if request.dropout:
        return "dropout on the probabilities"
    from torch.nn.attention.varlen import varlen_attn

    if missing := _NEEDED - inspect.signature(varlen_attn).parameters.keys():
        return f"this torch's varlen_attn has no {min(missing)}; a newer torch has"
    return None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention with one kernel call per pack."""
    from torch.nn.attention.varlen import varlen_attn

    bounds = request.layout.cu_seqlens, request.keys.cu_seqlens
    longest = request.layout.max_length, request.keys.max_length
    window = request.window
    assert window is not None  # else refused

    is_grouped = request.heads != request.key_heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = varlen_attn(
            q, k, v, *bounds, *longest,
            scale=request.scale, window_size=window, enable_gqa=is_grouped,
        )  # fmt: skip
        assert isinstance(out, Tensor)  # a pair only if the logsumexp is requested
        return out

    return attend
