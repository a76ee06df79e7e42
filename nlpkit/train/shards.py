"""Whole tensors where several processes have shards; weights and optimizer state by their names.

torch's distributed state dicts have the same names for a plain module, DDP and FSDP, on any number
of processes. All processes must call these functions together. What of torch they need takes half a
second and more to import: it is imported at the first save, not at the start; with a budget of
time, before its clock starts. What it has not made is not sharded.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    from torch.distributed.tensor import DTensor

PREFIX = "model."  # of `runs.run.Training`


def is_shard(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether each process has a part of this tensor."""
    made_by = sys.modules.get("torch.distributed.tensor")
    return made_by is not None and isinstance(tensor, made_by.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. All processes must call it together if it is sharded."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


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


def import_early() -> None:
    """Import now what the first save would: it takes seconds, and the last save does not."""
    import torch._dynamo  # what torch's functions import when they are called
    import torch.distributed.checkpoint.state_dict  # noqa: F401


def options(strict: bool = True) -> "StateDictOptions":
    """Return what torch's functions are asked for: whole tensors, on the CPU."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True, strict=strict)


def weights(training: nn.Module) -> dict[str, Tensor]:
    """Return the model's full parameters on the CPU; on ranks other than 0, an empty dict."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    release(training)
    state: dict[str, Any] = get_model_state_dict(training, options=options())
    return {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}


def optimizer_state(training: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return what the optimizers keep, such as `exp_avg:NAME` of AdamW, full and on the CPU."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    release(training)
    state: Any = get_optimizer_state_dict(training, optimizers, options=options())
    return {
        f"{kind}:{name.removeprefix(PREFIX)}": value
        for name, entry in state.get("state", {}).items()
        for kind, value in entry.items()
    }
