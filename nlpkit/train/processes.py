"""Several processes: forms their group, wraps a model for them: DistributedDataParallel, or FSDP.

With FSDP each process has a shard of every parameter; the weights of one layer at a time are whole.
"""

import os
from collections.abc import Callable
from threading import Timer

from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from torch import nn
from torch.optim import Optimizer

from nlpkit.contracts.batch import Batch
from nlpkit.errors import UsageError
from nlpkit.plural import number_of
from nlpkit.train.log import Log
from nlpkit.train.machine import FSDP, is_asked, to_device
from nlpkit.train.recompute import layers

# What `accelerate launch --use_fsdp` sets beside FSDP; `torchrun` and others may set it, too.
_OFFLOAD, _RESHARD = "FSDP_OFFLOAD_PARAMS", "FSDP_RESHARD_AFTER_FORWARD"
_OTHERS = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")  # other ways to shard
# What torchrun and others put into the environment of each process.
_NEEDED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_PATIENCE = 5.0  # seconds until it is said that others are waited for
_REMEDY = "start the run with torchrun, or unset them for a run of one process"


def form_group(on_cpu: bool, log: Log) -> None:
    """Wait for the other processes that a launcher started, which numbers them in the environment.

    Without all of it, torch and accelerate end in errors of their own, or wait for half an hour
    without a word.

    Raises:
        UsageError: the environment is not that of a launcher, or the processes form no group.
    """
    found = {name: os.environ[name] for name in _NEEDED if os.environ.get(name)}
    size, rank = int(found.get("WORLD_SIZE", "1")), int(found.get("RANK", "0"))
    given = " ".join(f"{name}={value}" for name, value in found.items())
    # On a CPU accelerate does without LOCAL_RANK.
    lacking = [n for n in _NEEDED if n not in found and (n != "LOCAL_RANK" or not on_cpu)]
    if rank >= size:
        raise _error(f"{given}: RANK counts from 0 to WORLD_SIZE - 1")
    if lacking and (size > 1 or "LOCAL_RANK" in found):
        raise _error(f"{given}, but no {', '.join(lacking)}")
    if others := [name for name in _OTHERS if is_asked(name)]:
        raise _error(f"{others[0]}: not supported; accelerate launch --use_fsdp shards a model")
    where = f"{found.get('MASTER_ADDR')}:{found.get('MASTER_PORT')}"
    waiting = f"process {rank} of {size} waits for the others at {where}; were all of them started?"
    timer = Timer(_PATIENCE, log.info, [waiting])
    timer.daemon = True
    timer.start()
    try:
        formed = PartialState(cpu=on_cpu).num_processes
    except (ValueError, RuntimeError) as error:  # of accelerate, of torch
        what = str(error).partition("\n")[0]
        raise _error(f"{given}: the processes form no group: {what}") from error
    finally:
        timer.cancel()
    if size != formed:
        raise UsageError(
            f"{size} processes were launched, but {formed} form a group; "
            "check the launcher's options and --device"
        )


def _error(what: str) -> UsageError:
    # Another process may not be there to say it: that of rank 0 alone prints such an error.
    os.environ.pop("RANK", None)
    return UsageError(f"environment: {what}; {_REMEDY}")


def is_sharded(number: int) -> bool:
    """Return whether the parameters of so many processes are sharded."""
    return number > 1 and is_asked(FSDP)


def wrap(
    accelerator: Accelerator,
    training: nn.Module,
    batch: Batch,
    optimizers: Callable[[], list[Optimizer]],
    note: Callable[[str], None],
) -> tuple[nn.Module, list[Optimizer]]:
    """Return the module to train on the accelerator's device, and the optimizers of its parameters.

    `batch` is any batch of the training data; `optimizers` makes them, after parameters are moved.
    """
    if not is_sharded(accelerator.num_processes):
        _expect_unused(accelerator, training, batch)
        wrapped, *prepared = accelerator.prepare(training, *optimizers())
        return wrapped, [each.optimizer for each in prepared]
    # Half a second, for those who shard.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    note(f"FSDP: shards of the parameters, {number_of(len(layers(training)), 'layers')}")
    training.to(accelerator.device)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    offload = CPUOffloadPolicy() if is_asked(_OFFLOAD) else OffloadPolicy()
    for layer in layers(training):
        reshard = is_asked(_RESHARD, "true")
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, offload_policy=offload)
    fully_shard(training, mesh=mesh, offload_policy=offload)
    return training, optimizers()


def _expect_unused(accelerator: Accelerator, training: nn.Module, batch: Batch) -> None:
    """Set `find_unused_parameters` of DDP if the loss of `batch` does not use all parameters.

    DDP waits for the gradient of each parameter, for example of an encoder's head for tokens, which
    a task does not use. The option costs time in every step, so it is set only if it is needed.
    """
    if accelerator.num_processes == 1:  # which is compiled
        return
    training.to(accelerator.device)
    loss = training(to_device(batch, accelerator.device))
    loss.mean(batch.num_targets).backward()
    unused = any(each.grad is None for each in training.parameters() if each.requires_grad)
    training.zero_grad(set_to_none=True)
    if unused:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
