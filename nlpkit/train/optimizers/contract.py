"""The interface of an optimizer: a module without torch, which names what updates which parameters.

A step changes no number of a parameter whose gradient there was always 0 and that is not decayed,
and it is the same in every process that has the same gradients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import Unsupported, not_installed
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from nlpkit.train.settings import ResolvedTraining

FOLDER = "train/optimizers"


@dataclass(frozen=True)
class Trained:
    """The parameters that are trained; `matrices`: those of layers (`models/matrices.py`)."""

    parameters: Sequence[nn.Parameter]
    matrices: dict[nn.Parameter, int]


@dataclass(frozen=True)
class Group:
    """Parameters that one optimizer updates with the same settings."""

    optimizer: str  # its name for people, such as AdamW
    what: str  # what the parameters are, such as `norms, biases`
    parameters: Sequence[nn.Parameter]
    lr: float  # at the peak of the schedule
    weight_decay: float
    state: int  # float32 numbers that the optimizer keeps for them
    matrices: int = 1  # that lie one below the other in each parameter

    @property
    def weights(self) -> int:
        """The number of weights."""
        return sum(parameter.numel() for parameter in self.parameters)

    def figures(self) -> dict[str, Any]:
        """Return what `nlpkit plan --json` says of the group."""
        return {
            "optimizer": self.optimizer,
            "parameters": self.what,
            "tensors": len(self.parameters),
            "matrices_per_tensor": self.matrices,
            "weights": self.weights,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
        }


def line(figures: Mapping[str, Any]) -> str:
    """Return the figures of a group on one line, for people."""
    tensors, each = figures["tensors"], figures["matrices_per_tensor"]
    number = f"{tensors} x {each}" if each > 1 else f"{tensors}"
    return (
        f"{figures['optimizer']}: {number} {figures['parameters']}; "
        f"{number_of(figures['weights'], 'weights')}; "
        f"lr {figures['lr']:g}, decay {figures['weight_decay']:g}"
    )


class OptimizerPart(Protocol):
    """`train/optimizers/NAME.py`, or the module of a dotted name.

    Optional is `peak_lr(config, width)`, the rate at which a model of this width is trained best;
    None: it is not known with these settings. `model.size` needs it where `train.lr` is not set.
    """

    Config: type[FrozenConfig]  # its settings; those of `train` are the same for all optimizers
    READS: tuple[str, ...]  # of train.beta1, beta2 and adam_eps: those that it uses
    # Whether a step on shards of the parameters (FSDP) is that on the whole ones.
    SHARDED: bool
    PACKAGE: str | None  # the package that has to be installed for it, as pip calls it

    def groups(self, config: Any, settings: ResolvedTraining, trained: Trained) -> list[Group]:
        """Return the groups; each trained parameter is in one of them, and no group is empty."""

    def make(
        self, config: Any, settings: ResolvedTraining, groups: Sequence[Group]
    ) -> list[Optimizer]:
        """Return the optimizers of these groups; `param_groups` makes torch's groups of ours."""


def param_groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the groups as torch's optimizers take them; `initial_lr` is the schedule's peak."""
    return [
        {
            "params": list(group.parameters),
            "lr": group.lr,
            "initial_lr": group.lr,
            "weight_decay": group.weight_decay,
        }
        for group in groups
    ]


def by_dimension(
    optimizer: str, trained: Trained, settings: ResolvedTraining, state: Sequence[int]
) -> list[Group]:
    """Return the groups of an optimizer for all: what is decayed, and norms and biases.

    `state` has the float32 numbers that the optimizer keeps for each parameter.
    """
    wide = [parameter.ndim >= 2 for parameter in trained.parameters]
    named = {True: "matrices, tables", False: "norms, biases"}
    decay = {True: decay_of(settings), False: 0.0}
    return [
        Group(
            optimizer,
            what,
            [p for p, is_wide in zip(trained.parameters, wide, strict=True) if is_wide is kind],
            settings.lr,
            decay[kind],
            sum(n for n, is_wide in zip(state, wide, strict=True) if is_wide is kind),
        )
        for kind, what in named.items()
        if kind in wide
    ]


def decay_of(settings: ResolvedTraining) -> float:
    """Return the weight decay of matrices; it would change the soft prompts of other tasks."""
    return settings.weight_decay if settings.tune == "all" else 0.0


def check_installed(name: str) -> None:
    """Raise `Unsupported` if the package of the optimizer `name` is not installed."""
    package = getattr(registry.load(FOLDER, name), "PACKAGE", None)
    if package and importlib.util.find_spec(package.replace("-", "_")) is None:
        raise Unsupported(f"train.optimizer: {not_installed(package)}")
