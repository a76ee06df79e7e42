"""What several processes must know of a model before they share its gradients."""

from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DistributedType
from torch import nn

from nlpkit.data.pack import Batch
from nlpkit.train.loop import to_device

_DDP = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def expect_unused(accelerator: Accelerator, training: nn.Module, batch: Batch) -> None:
    """Make DistributedDataParallel look for unused parameters where the loss of `batch` has some.

    Such as a head for tokens where an encoder learns a task: DDP would wait for its gradient. To
    look at every step costs time, so it is done only where one is unused.
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
