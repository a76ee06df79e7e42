"""Tensors that FSDP shards: each process has a part of them."""

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. All processes must call it together if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor; into a sharded one, this process's part of them.

    `values` is whole and the same in all processes. Nothing is sent.
    """
    if isinstance(tensor, DTensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        # Without a source rank, each process takes its part of what it has.
        values = distribute_tensor(values.to(tensor.device), mesh, placements, src_data_rank=None)
    tensor.copy_(values)


def release(module: nn.Module) -> None:
    """Let all parameters be shards, also those that a forward pass alone has left whole.

    Until then, FSDP computes with the whole ones, whatever the shards have become.
    """
    for each in module.modules():
        if isinstance(each, FSDPModule):
            each.reshard()
