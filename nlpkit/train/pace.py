"""The pace of a run: how far it is with each step, and when it evaluates and saves.

`Pace` counts steps. `train.budget.Clock` counts the time of a budget.
"""

from typing import NamedTuple

from nlpkit.train.settings import ResolvedTraining
from nlpkit.train.state import State


class Tick(NamedTuple):
    """What the clock says at the begin of a step; the same in all processes. Steps need none."""

    elapsed: float = 0.0  # seconds of the budget that are used
    progress: float = 0.0  # share of the run that is done with this step; 1: it is the last one
    near_end: float = 0.0  # 1: an evaluation or checkpoint due after this step is left out


class Pace:
    """The pace of a run of `train.steps`."""

    def __init__(self, settings: ResolvedTraining) -> None:
        self.settings = settings

    def begin_step(self) -> None:
        """Note that a step begins, with making its batches."""

    def tick(self, state: State) -> Tick:
        """Return what holds for the step after `state`, which began with the last `begin_step`."""
        return Tick()

    def schedule_step(self, state: State, tick: Tick) -> float:
        """Return where the step after `state` is in the schedule of `settings.steps`."""
        return state.step + 1

    def decay_begins(self, state: State, schedule_step: float) -> bool:
        """Return whether `state` turns out, only now, to be the last one before the decay."""
        return False

    def logged(self, tick: Tick) -> dict[str, float]:
        """Return what the record of a step says of its tick."""
        return {}

    def end_step(self, state: State, tick: Tick) -> None:
        """Note that a step was taken; `state` is the one after it."""

    def evaluation_is_due(self, state: State) -> bool:
        """Return whether held-out data are due after the last step."""
        every = self.settings.eval_every
        return state.progress(self.settings) >= 1 or bool(every and state.step % every == 0)

    def begin_evaluation(self) -> None:
        """Note that an evaluation begins."""

    def end_evaluation(self, state: State) -> None:
        """Note that an evaluation ends."""

    def checkpoint_is_due(self, state: State) -> bool:
        """Return whether a checkpoint is due after the last step."""
        return state.step % self.settings.save_every == 0

    def begin_saving(self, state: State) -> None:
        """Note that a checkpoint of `state` is going to be written."""

    def end_saving(self, state: State) -> None:
        """Note that a checkpoint of `state` is written."""

    def spent(self) -> dict[str, float]:
        """Return what each record says of the time that is used now."""
        return {}

    def seconds_left(self, state: State, tokens_per_second: float) -> float:
        """Return the seconds until the end of the run at this speed."""
        tokens = (self.settings.steps - state.step) * self.settings.tokens_per_step
        return tokens / max(tokens_per_second, 1e-9)

    def summary(self) -> str:
        """Return what a finished run says of its time, after the number of its tokens."""
        return ""
