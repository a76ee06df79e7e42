"""Wraps a model for several processes: DistributedDataParallel, or FSDP.

With FSDP each process has a shard of every parameter; the weights of one layer at a time are whole.
"""

from collections.abc import Callable

from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.optim import Optimizer

from nlpkit.contracts.batch import Batch
from nlpkit.plural import number_of
from nlpkit.train.machine import FSDP, is_asked, layers, to_device

# What `accelerate launch --use_fsdp` sets beside FSDP; `torchrun` and others may set it, too.
_OFFLOAD, _RESHARD = "FSDP_OFFLOAD_PARAMS", "FSDP_RESHARD_AFTER_FORWARD"


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
    trained = [parameter for parameter in training.parameters() if parameter.requires_grad]
    unused = any(parameter.grad is None for parameter in trained)
    training.zero_grad(set_to_none=True)
    if unused:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
