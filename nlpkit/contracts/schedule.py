"""The contract of `train/schedules/NAME.py`: functions of the step without torch."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from nlpkit.config import FrozenConfig


class RunLength(Protocol):
    """What a schedule reads of `train.schedule.ResolvedTraining`, beside its own settings."""

    @property
    def steps(self) -> int: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def decay_steps(self) -> int: ...

    def decay_progress(self, step: float) -> float:
        """Return the share of the steps after the warm-up that are done; 1 after the last one."""


class SchedulePart(Protocol):
    """The shape of the learning rate in the course of a run, and the size of each step."""

    Config: type[FrozenConfig]
    # Of train.min_lr_ratio and train.decay_ratio: those that it uses. With the first, its 0 is
    # this share of the peak; with the second, the step before the decay has a checkpoint, `stable`.
    READS: tuple[str, ...] = ()
    NEEDS_WARMUP: bool = False  # whether there must be a warm-up

    # `(step, config, usual)`: the batches of step 1, 2, …, at least 1, over all processes; `usual`
    # are those of train.tokens_per_step. None: each step has the usual ones.
    batches: Callable[[int, Any, int], int] | None = None

    @abstractmethod
    def factor(self, step: float, config: Any, settings: RunLength) -> float:
        """Return the rate of step 1, 2, … `settings.steps` as a share of the peak, from 0 to 1.

        The warm-up limits it (`train.schedule.lr_factor`). With a budget of time, steps are parts
        of a grid.
        """


CONTRACTS = (SchedulePart,)
