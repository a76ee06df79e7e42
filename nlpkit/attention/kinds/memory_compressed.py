"""Memory-compressed attention: full attention to keys and values that a convolution shortens.

Liu et al. 2018, arXiv:1801.10198, sec. 4.2.4: kernel and stride are 3, so that three tokens, a
window, become one key and one value; queries stay as they are. The convolution is learned, one for
the keys and one for the values of each head.

Both ways, the last window of a sequence may be short: the kernel then has nothing to multiply at
its end. Causal, a token sees the windows that end at it or to its left, so the newest tokens only
once their window is finished. Before the first window there would be no key, so each token also
sees a start, a learned key and value: the answer of the first two tokens is the start's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.contracts.kind import Learned, ParamSpec, State, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.forms.compressed import Windows
    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False
DROPOUT = True  # its probabilities can have dropout
COST = "N^2 / stride"
visibility = sides.visibility


class Config(sides.SidesConfig):
    """The size of the windows, and which side a token sees."""

    stride: int = Field(3, ge=2, description="tokens that become one key and one value")


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the kernels, which keep the variance, and the start of the causal form."""
    shape = (heads, config.stride, head_dim, head_dim)
    kernel = ParamSpec(shape, (config.stride * head_dim) ** -0.5)
    start = ParamSpec((heads, head_dim))
    starts = {"start_key": start, "start_value": start} if sides.is_causal(config) else {}
    return {"key_kernel": kernel, "value_kernel": kernel, **starts}


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is in a window that the query sees; the start is no token."""
    if not sides.is_causal(config):
        return sides.mask(config, q, k)
    last = k["position"] - k["position"] % config.stride + config.stride - 1
    return last <= q["position"]


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the number of pairs of a query and a window, or the start, that it sees."""
    if not sides.is_causal(config):
        return float(sum(length * -(-length // config.stride) for length in lengths))
    # A window is seen by its last token and all behind it.
    windows = [(length, length // config.stride) for length in lengths]
    return float(sum(n + w * (n + 1) - config.stride * w * (w + 1) // 2 for n, w in windows))


def prepare(request: Request) -> Windows | None:
    """Return the windows of the pack; None for new tokens of cached sequences."""
    from nlpkit.attention.forms.compressed import Windows

    if request.layout.past is not None:
        return None
    return Windows.of(request.layout, request.config.stride, sides.is_causal(request.config))


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D).

    `state` is the windows of each sequence, `keys` and `values` (B, T, H, D), and the tokens of the
    window that is not finished, `new_keys` and `new_values` (B, stride, H, D).
    """
    from nlpkit.attention.forms import compressed

    learned = {name: tensor.to(q.dtype) for name, tensor in tensors.items()}
    if state:
        return compressed.extend(request, q, k, v, learned, state)
    if state is not None:
        compressed.remember(request, k, v, learned, state)
    return compressed.attend(request, q, k, v, learned)
