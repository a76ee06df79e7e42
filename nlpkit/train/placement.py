"""Where tensors are: the device of a run, and the shards of several processes.

What shards them is imported where it is used: it takes half a second. What it has not made is not
sharded.
"""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn

from nlpkit.contracts.batch import Batch
from nlpkit.errors import UsageError
from nlpkit.train import machine
from nlpkit.train.log import Log
from nlpkit.train.settings import Config

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


# What `accelerate launch` sets for --use_fsdp and --dynamo_backend.
FSDP, _COMPILER = "ACCELERATE_USE_FSDP", "ACCELERATE_DYNAMO_BACKEND"


def is_asked(name: str, default: str = "false") -> bool:
    """Return whether a variable of the environment is set to yes."""
    return os.environ.get(name, default).lower() not in ("false", "0", "no")


def is_wrapped(number: int) -> bool:
    """Return whether the model of so many processes is wrapped: one is if it is compiled."""
    return number > 1 or is_asked(_COMPILER)


def make_accelerator(settings: Config, device: str, log: Log) -> Accelerator:
    """Return the accelerator; `Training` applies autocast, as the precision is chosen later.

    Raises:
        UsageError: the device is not available.
    """
    on_cpu = machine.find_device(device).type == "cpu"
    if device not in ("auto", "cpu"):
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    machine.configure_allocator()
    if on_cpu and torch.get_num_threads() > 1:
        from nlpkit.train import spinning

        spinning.start(log.info)
    # On a CPU, several processes form a group only with `cpu=True`.
    processes = PartialState(cpu=on_cpu)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes.num_processes:
        raise UsageError(
            f"{launched} processes were launched, but {processes.num_processes} form a group; "
            "check the launcher's options and --device"
        )
    if not processes.is_main_process:
        log.verbosity = -1  # only rank 0 logs
    # It would shard on GPUs only: on CPUs it takes DistributedDataParallel without a word.
    asked = os.environ.pop(FSDP, None)
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")
    if asked is not None:
        os.environ[FSDP] = asked
    if settings.deterministic:
        machine.use_deterministic_algorithms(accelerator.device)
    return accelerator


def unwrapped(module: Any) -> Any:
    """Return the module that `wrap` was given.

    As `Accelerator.unwrap_model`, which imports torch's compiler to look for compiled modules.
    """
    module = getattr(module, "_orig_mod", module)  # compiled as `accelerate launch` was asked to
    return module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the members of all `nn.ModuleList` that have parameters, without those inside them."""
    found = []
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            found += [child] if [*child.parameters()] else []
        else:
            found += layers(child)
    return found


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its arrays as tensors on `device`."""

    def move(array: Any) -> Any:
        tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        return tensor.to(device, non_blocking=True) if isinstance(tensor, Tensor) else tensor

    fields = {name: move(array) for name, array in batch.fields.items()}
    return replace(batch, fields=fields)


def is_shard(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether each process has a part of this tensor."""
    made_by = sys.modules.get("torch.distributed.tensor")
    return made_by is not None and isinstance(tensor, made_by.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor. All processes must call it together if it is sharded."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor; into a sharded one, this process's part of them.

    `values` is whole and the same in all processes. Nothing is sent.
    """
    if is_shard(tensor):
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
