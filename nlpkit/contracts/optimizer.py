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


class OptimizerPart(Protocol):
    """An optimizer of torch or of a library."""

    Config: type[FrozenConfig]  # its settings; those of `train` are the same for all optimizers
    READS: tuple[str, ...] = ()  # of train.beta1, beta2 and adam_eps: those that it uses
    # Whether a step on shards of the parameters (FSDP) is that on the whole ones.
    SHARDED: bool = False
    PACKAGE: str | None = None  # the package that has to be installed for it, as pip calls it
    NAME: str | None = None  # of the groups that it is chosen for; a run without one is warned

    @abstractmethod
    def groups(self, config: Any, settings: Any, trained: Trained) -> list[Group]:
        """Return the groups; each trained parameter is in one of them, and no group is empty."""

    @abstractmethod
    def make(self, config: Any, settings: Any, groups: Sequence[Group]) -> list[Optimizer]:
        """Return the optimizers of these groups; `param_groups` makes torch's groups of ours."""

    def peak_lr(self, config: Any, width: int) -> float | None:
        """Return the rate at which a model of this width is trained best, None if unknown.

        `model.size` needs it where `train.lr` is not set.
        """
        return None


CONTRACTS = (OptimizerPart,)
CLASSES: dict[str, type] = {}
