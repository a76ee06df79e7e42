"""Wraps a model for several processes: DistributedDataParallel, or FSDP.

With FSDP each process has a shard of every parameter; the weights of one layer at a time are whole.
What shards them is imported where it is used: it takes half a second. What it has not made is not
sharded.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import accelerate.accelerator
import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nlpkit.contracts.batch import Batch
from nlpkit.errors import UsageError
from nlpkit.train import machine
from nlpkit.train.log import Log
from nlpkit.train.settings import Config

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# What `accelerate launch --use_fsdp` sets; `torchrun` and others may set it, too.
_FSDP, _OFFLOAD, _RESHARD = "USE_FSDP", "OFFLOAD_PARAMS", "RESHARD_AFTER_FORWARD"
_NAMES = {_FSDP: "ACCELERATE_USE_FSDP", _OFFLOAD: "FSDP_OFFLOAD_PARAMS"}
_NAMES |= {_RESHARD: "FSDP_RESHARD_AFTER_FORWARD"}
_LOOK = "model_has_dtensor"  # of accelerate.accelerator


def _is_asked(what: str, default: str = "false") -> bool:
    return os.environ.get(_NAMES[what], default).lower() not in ("false", "0", "no")


@contextmanager
def _unknown_to_accelerate() -> Iterator[None]:
    """Let accelerate see no FSDP while the context lasts.

    It shards on GPUs only: on CPUs it takes DistributedDataParallel without a word.
    """
    asked = os.environ.pop(_NAMES[_FSDP], None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[_NAMES[_FSDP]] = asked


@contextmanager
def _nothing_sharded() -> Iterator[None]:
    """Let accelerate know that no parameter is a shard: to look costs it an import of 0.4 s."""
    look = getattr(accelerate.accelerator, _LOOK, None)
    try:
        if look is not None:
            setattr(accelerate.accelerator, _LOOK, lambda model: False)
        yield
    finally:
        if look is not None:
            setattr(accelerate.accelerator, _LOOK, look)


def make_accelerator(settings: Config, device: str, log: Log) -> Accelerator:
    """Return the accelerator; autocast is of `Training`, since the precision is chosen later.

    Raises:
        UsageError: the device is not available.
    """
    target = machine.find_device(device)
    if device not in ("auto", "cpu"):
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    machine.configure_allocator()
    if target.type == "cpu" and torch.get_num_threads() > 1:
        from nlpkit.train import spinning

        spinning.start(log.info)
    # On a CPU, several processes form a group only with `cpu=True`.
    on_cpu = target.type == "cpu"
    processes = PartialState(cpu=on_cpu)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes.num_processes:
        raise UsageError(
            f"{launched} processes were launched, but {processes.num_processes} form a group; "
            "check the launcher's options and --device"
        )
    if not processes.is_main_process:
        log.verbosity = -1  # only rank 0 logs
    with _unknown_to_accelerate():
        accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")
    if settings.deterministic:
        machine.use_deterministic_algorithms(accelerator.device)
    return accelerator


def is_sharded(number: int) -> bool:
    """Return whether the parameters of so many processes are sharded."""
    return number > 1 and _is_asked(_FSDP)


def wrap(
    accelerator: Accelerator,
    training: nn.Module,
    batch: Batch,
    optimizers: Callable[[], Sequence[torch.optim.Optimizer]],
) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """Return the module to train on the accelerator's device, and the optimizers of its parameters.

    `batch` is any batch of the training data; `optimizers` makes them, after parameters are moved.
    """
    if not is_sharded(accelerator.num_processes):
        _expect_unused(accelerator, training, batch)
        with _nothing_sharded():
            wrapped, *prepared = accelerator.prepare(training, *optimizers())
        return wrapped, [each.optimizer for each in prepared]
    # Half a second, for those who shard.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    training.to(accelerator.device)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    offload = CPUOffloadPolicy() if _is_asked(_OFFLOAD) else OffloadPolicy()
    for layer in layers(training):
        reshard = _is_asked(_RESHARD, "true")
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, offload_policy=offload)
    fully_shard(training, mesh=mesh, offload_policy=offload)
    return training, list(optimizers())


def unwrapped(module: Any) -> Any:
    """Return the module that `wrap` was given.

    As `Accelerator.unwrap_model`, which imports torch's compiler to look for compiled modules.
    """
    module = getattr(module, "_orig_mod", module)  # compiled as `accelerate launch` was asked to
    return module.module if isinstance(module, DistributedDataParallel) else module


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the members of all `nn.ModuleList` that have parameters, without those inside them."""
    found = []
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            found += [child] if [*child.parameters()] else []
        else:
            found += layers(child)
    return found


def _expect_unused(accelerator: Accelerator, training: nn.Module, batch: Batch) -> None:
    """Set `find_unused_parameters` of DDP if the loss of `batch` does not use all parameters.

    DDP waits for the gradient of each parameter, for example of an encoder's head for tokens, which
    a task does not use. The option costs time in every step, so it is set only if it is needed.
    """
    if accelerator.num_processes == 1:
        return
    training.to(accelerator.device)
    loss = training(to_device(batch, accelerator.device))
    loss.mean(batch.num_targets).backward()
    trained = [parameter for parameter in training.parameters() if parameter.requires_grad]
    unused = any(parameter.grad is None for parameter in trained)
    training.zero_grad(set_to_none=True)
    if unused:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)


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
