"""The parts of a run that is ready to train."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.optim import Optimizer

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.pack import Batch
from nlpkit.objectives._task import Task
from nlpkit.objectives.contract import Objective, forward
from nlpkit.recipe import Resolved
from nlpkit.runs.parts import Data, ModelPart
from nlpkit.train.average import Average
from nlpkit.train.log import Log
from nlpkit.train.processes import unwrapped
from nlpkit.train.settings import ResolvedTraining

T = TypeVar("T")


class Training(nn.Module):
    """Model and objective as one module: DDP, FSDP and autocast must also wrap the loss.

    With `precision` "bf16", products are in bfloat16 (autocast).
    """

    model: Any  # a family's `Model`; the type of an `nn.Module` attribute would not show it

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model = model
        self.objective = objective
        self.precision = "fp32"

    def forward(self, batch: Batch, predict: bool = False) -> Any:
        """Return the loss; with `predict`, the loss and the (prediction, label) pairs of a task."""
        with self._autocast():
            hidden = forward(self.objective, self.model, batch)
            if predict and isinstance(self.objective, Task):
                return self.objective.predict(self.model, hidden, batch)
            loss = self.objective.loss(self.model, hidden, batch)
            return (loss, []) if predict else loss

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, torch.bfloat16)


@dataclass
class Run:
    """A run with its parts, ready to train."""

    resolved: Resolved
    settings: ResolvedTraining  # the section `train`, with its length in steps
    directory: RunDirectory
    part: ModelPart
    data: Data
    accelerator: Accelerator
    training: nn.Module
    optimizers: list[Optimizer]
    average: Average | None
    log: Log

    @property
    def unwrapped(self) -> Training:
        """The training module without the wrappers of accelerate."""
        return unwrapped(self.training)

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the average of its weights, if there is one."""
        return self.average.applied() if self.average else nullcontext()


def from_first(processes: PartialState, compute: Callable[[], T]) -> T:
    """Return on all ranks the result of `compute`, which is called on rank 0 only."""
    results = [compute() if processes.is_main_process else None]
    if processes.num_processes > 1:
        broadcast_object_list(results)
    return results[0]  # type: ignore[return-value]
