"""The optimizers of a run, as `train.optimizer` names them."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from nlpkit.models.matrices import layer_matrices
from nlpkit.train.optimizers.contract import Group, Trained
from nlpkit.train.settings import ResolvedTraining
from nlpkit.train.uncompiled import leave_out_the_compiler


def groups(model: nn.Module, settings: ResolvedTraining) -> list[Group]:
    """Return which optimizer updates which of the trained parameters of a family's model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = {p: count for p, count in layer_matrices(model).items() if p.requires_grad}
    chosen = settings.optimizer
    return chosen.module.groups(chosen.config, settings, Trained(trained, matrices))


def optimizers(model: nn.Module, settings: ResolvedTraining) -> list[Optimizer]:
    """Return the optimizers of `train.optimizer`; together they have each trained parameter once.

    Raises:
        Unsupported: the package of the optimizer is not installed.
    """
    leave_out_the_compiler()
    chosen = settings.optimizer
    return chosen.module.make(chosen.config, settings, groups(model, settings))


def set_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the rate of each group to this share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
