"""The contract of `train/optimizers/NAME.py`: a module without torch.

It names what updates which parameters. A step changes no number of a parameter whose gradient there
was always 0 and that is not decayed, and it is the same in every process that has the same
gradients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nlpkit.config import FrozenConfig
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


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

    def for_torch(self) -> JsonObject:
        """Return the group as torch's optimizers take it; `initial_lr` is the schedule's peak."""
        rates = {"lr": self.lr, "initial_lr": self.lr, "weight_decay": self.weight_decay}
        return {"params": list(self.parameters), **rates}

    def figures(self) -> JsonObject:
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


def describe(figures: JsonMapping) -> str:
    """Return the figures of a group on one line, for people."""
    tensors, each = figures["tensors"], figures["matrices_per_tensor"]
    number = f"{tensors} x {each}" if each > 1 else f"{tensors}"
    return (
        f"{figures['optimizer']}: {number} {figures['parameters']}; "
        f"{number_of(figures['weights'], 'weights')}; "
        f"lr {figures['lr']:g}, decay {figures['weight_decay']:g}"
    )


def decay_of(settings: Any) -> float:
    """Return the weight decay of matrices; it would change the soft prompts of other tasks."""
    return settings.weight_decay if settings.tune == "all" else 0.0


class OptimizerPart(Protocol):
    """An optimizer of torch or of a library."""

    Config: type[FrozenConfig]  # its settings; those of `train` are the same for all optimizers
    NAME: str  # of its groups, for people; a run in which no group has it is warned
    READS: tuple[str, ...] = ()  # of train.beta1, beta2 and adam_eps: those that it uses
    # Whether a step on shards of the parameters (FSDP) is that on the whole ones.
    SHARDED: bool = False
    PACKAGE: str | None = None  # the package that has to be installed for it, as pip calls it

    def state(self, config: Any, parameter: nn.Parameter) -> int:
        """Return how many float32 numbers it keeps of a parameter."""
        return 0

    def groups(self, config: Any, settings: Any, trained: Trained) -> list[Group]:
        """Return the groups; each trained parameter is in one of them, and no group is empty.

        By default, matrices and tables, which are decayed, and norms and biases.
        """
        wide = [parameter for parameter in trained.parameters if parameter.ndim >= 2]
        rest = [parameter for parameter in trained.parameters if parameter.ndim < 2]
        kinds = (("matrices, tables", wide, decay_of(settings)), ("norms, biases", rest, 0.0))
        found = []
        for what, alike, decay in kinds:
            if alike:
                size = sum(self.state(config, p) for p in alike)
                found.append(Group(self.NAME, what, alike, settings.lr, decay, size))
        return found

    @abstractmethod
    def make(self, config: Any, settings: Any, groups: Sequence[Group]) -> list[Optimizer]:
        """Return the optimizers of these groups."""

    def peak_lr(self, config: Any, width: int) -> float | None:
        """Return the rate at which a model of this width is trained best, None if unknown.

        `model.size` needs it where `train.lr` is not set.
        """
        return None


CONTRACTS = (OptimizerPart,)
