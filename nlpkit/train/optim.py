"""The optimizers of a run, as `train.optimizer` names them.

torch's optimizers import torch's compiler, to tell it what not to compile: 0.7 s at the start of
every run. Nothing here compiles an optimizer, so it is left out.
"""

import inspect
from collections.abc import Iterable
from typing import TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from nlpkit.contracts.optimizer import Group, Trained
from nlpkit.models.matrices import layer_matrices
from nlpkit.train.schedule import ResolvedTraining
from nlpkit.train.trackers import check_installed

_MARK = "__dynamo_disable"  # torch/_compile.py: a method that has it is called as it is

T = TypeVar("T", bound=Optimizer)


def groups(model: nn.Module, settings: ResolvedTraining) -> list[Group]:
    """Return which optimizer updates which of the trained parameters of a family's model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = {p: count for p, count in layer_matrices(model).items() if p.requires_grad}
    chosen = settings.optimizer
    return chosen.module.groups(chosen.config, settings, Trained(trained, matrices))


def optimizers(model: nn.Module, settings: ResolvedTraining) -> list[Optimizer]:
    """Return the optimizers of `train.optimizer`; raise `Unsupported` without their package."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        eager = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if eager is not None:
            setattr(eager, _MARK, eager)  # all optimizers of torch share these methods
    chosen = settings.optimizer
    if chosen.module.PACKAGE:
        check_installed("train.optimizer", [chosen.module.PACKAGE])
    return chosen.module.make(chosen.config, settings, groups(model, settings))


def set_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the rate of each group to this share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


def uncompiled(optimizer: type[T]) -> type[T]:
    """Return an optimizer whose `step` does not import it, and has no gradients of its own."""
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    return cast(type[T], type(optimizer.__name__, (optimizer,), {"step": step}))
