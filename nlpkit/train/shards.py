"""Tensors that FSDP shards: each process has a part of them.

What shards them is imported where it is used: it takes half a second, and most runs are of one
process. What it has not made is not sharded.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether each process has a part of this tensor."""
    made_by = sys.modules.get("torch.distributed.tensor")
    return made_by is not None and isinstance(tensor, made_by.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. All processes must call it together if it is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor; into a sharded one, this process's part of them.

    `values` is whole and the same in all processes. Nothing is sent.
    """
    if is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = tensor.device_mesh, tensor.placements
        # Without a source rank, each process takes its part of what it has.
        values = distribute_tensor(values.to(tensor.device), mesh, placements, src_data_rank=None)
    tensor.copy_(values)


def release(module: nn.Module) -> None:
    """Let all parameters be shards, also those that a forward pass alone has left whole.

    Until then, FSDP computes with the whole ones, whatever the shards have become.
    """
    made_by = sys.modules.get("torch.distributed.fsdp")
    if made_by is None:
        return
    for each in module.modules():
        if isinstance(each, made_by.FSDPModule):
            each.reshard()
