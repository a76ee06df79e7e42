"""Configures DistributedDataParallel for models with unused parameters."""

from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DistributedType
from torch import nn

from nlpkit.data.pack import Batch
from nlpkit.train.loop import to_device

_DDP = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def expect_unused(accelerator: Accelerator, training: nn.Module, batch: Batch) -> None:
    """Set `find_unused_parameters` of DDP if the loss of `batch` does not use all parameters.

    DDP waits for the gradient of each parameter, for example of an encoder's head for tokens, which
    a task does not use. The option costs time in every step, so it is set only if it is needed.
    """
    if accelerator.distributed_type not in _DDP:
        return
    training.to(accelerator.device)
    with accelerator.autocast():
        loss = training(to_device(batch, accelerator.device))
    loss.mean(batch.num_targets).backward()
    trained = [parameter for parameter in training.parameters() if parameter.requires_grad]
    unused = any(parameter.grad is None for parameter in trained)
    training.zero_grad(set_to_none=True)
    if unused:
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
