"""Weights of an opened checkpoint in the order in which oneDNN multiplies by them, on a CPU.

torch keeps a weight row by row. Its product with few rows, as in generation, takes twice as long in
float32 on AMD's CPUs, since MKL's fast code is for Intel's, and in bfloat16 on every CPU, since
oneDNN then reorders the weight in every product (`python bench/generate.py`, docs/generate.md).
"""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 8  # a product of about this many rows is what the order is for; others gain, too
_SMALLEST = 128 * 128  # a smaller product costs less than the call


class PackedWeight(Tensor):
    """A weight (out, in). `F.linear` multiplies by its copy; all else sees a plain tensor."""

    packed: Tensor | None = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear:
                return _linear(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))


def pack(model: nn.Module, free: int) -> None:
    """Let a model on a CPU multiply by packed copies of its matrices, made at the first product.

    The weights must not change afterwards. Nothing is done where that would not be faster, or if
    copies of all matrices needed more than half of `free` bytes.
    """
    chosen = {id(weight): weight for weight in model.parameters() if _gains(weight)}
    if 2 * sum(weight.nbytes for weight in chosen.values()) > free:
        return
    packed = {key: weight.detach().as_subclass(PackedWeight) for key, weight in chosen.items()}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if id(weight) in packed:  # not by `setattr`, which wants an nn.Parameter
                module._parameters[name] = packed[id(weight)]  # type: ignore[assignment]


def _gains(weight: Tensor) -> bool:
    """Return whether the products of a weight on this CPU are faster by a packed copy."""
    if weight.ndim != 2 or weight.numel() < _SMALLEST or platform.machine() != "x86_64":
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and _is_amd()


@cache
def _is_amd(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            return any(line.startswith("vendor_id") and "AuthenticAMD" in line for line in lines)
    except OSError:  # not Linux
        return False


def _linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    # Not with autocast, not for gradients, and not for a mistake, which torch names.
    is_cast = x.dtype != weight.dtype or torch.is_autocast_enabled("cpu")
    if is_cast or x.requires_grad or x.shape[-1] != weight.shape[1]:
        return F.linear(x, weight, bias)
    if weight.packed is None:
        weight.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return torch.ops.mkldnn._linear_pointwise(x, weight.packed, bias, "none", [], "")
