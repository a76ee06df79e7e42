"""The common limits of variable-length kernels for GPUs."""

import torch

from nlpkit.contracts.request import Request


def refuses(request: Request) -> str | None:
    """Return why a kernel without masks and biases does not support this request, or None."""
    if request.table is not None:
        return "learned bias"
    if request.window is None:
        return "a mask that is neither full, causal nor a window"
    if request.device.type != "cuda":
        return f"made for CUDA, not for {request.device.type}"
    if request.dtype not in (torch.float16, torch.bfloat16):
        return f"made for float16 and bfloat16, not for {str(request.dtype).removeprefix('torch.')}"
    if request.head_dim % 8 or request.head_dim > 256:
        return f"head width {request.head_dim} is not a multiple of 8 up to 256"
    if torch.cuda.get_device_capability(request.device) < (8, 0):
        return "needs an Ampere GPU or newer"
    return None
