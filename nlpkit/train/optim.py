"""The optimizers of a run, and the learning rate as a function of the step."""

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from nlpkit.models.matrices import layer_matrices
from nlpkit.train.optimizers.contract import Group, Trained
from nlpkit.train.settings import ResolvedTraining


def lr_factor(step: int, settings: ResolvedTraining) -> float:
    """Return the learning rate of step 1, 2, … `settings.steps`, relative to the peak.

    `noam` is Vaswani et al. 2017, eq. 3, scaled to 1 at its peak, the end of the warm-up. `linear`
    and `cosine` reach `min_lr_ratio` one step after the last step, so that no step has rate 0.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return step / warmup
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "noam":
        return math.sqrt(warmup / step)
    if settings.zero_at_last_step:
        progress = (step - warmup) / max(1, settings.steps - warmup)
    else:
        peak = max(1, warmup)
        progress = (step - peak) / (settings.steps + 1 - peak)
    shape = (
        1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    low = settings.min_lr_ratio
    return low + (1 - low) * shape


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
    chosen = settings.optimizer
    return chosen.module.make(chosen.config, settings, groups(model, settings))


def set_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the rate of each group to this share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
