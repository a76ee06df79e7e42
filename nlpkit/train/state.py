"""The state of a run, except weights and optimizer: how far it is, and its best evaluation.

`Pace` counts steps. `train.budget.Clock` counts the time of a budget. Imports no torch.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from nlpkit.data.loader import Position
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.train.schedule import ResolvedTraining, batches_per_step, stable_end

LOSS = "loss"  # the default of `train.best_by`
ALMOST = 1 - 1e-6  # the most that is done of a run which is not at its end


@dataclass
class Times:
    """Seconds of a run with a budget of time; all are 0 in another run."""

    budget: float = 0.0
    elapsed: float = 0.0  # used of the budget
    progress: float = 0.0  # share of the run that is done; 1: it is at its end
    step: float = 0.0  # time of a step
    evaluation: float = 0.0  # time of the last evaluation
    saving: float = 0.0  # time of the last checkpoint
    near_end: float = 0.0  # 1: the end comes before an evaluation that is due now would
    stable_step: int = 0  # the step before the decay of the learning rate

    def follow(self, settings: ResolvedTraining) -> None:
        """Take the budget of the settings, which may be another one than that of the checkpoint."""
        budget = settings.budget_seconds
        if budget is None or budget == self.budget:
            return
        if self.progress < 1:
            self.progress = min(ALMOST, self.progress * self.budget / budget)
        elif budget > self.elapsed:
            self.progress = min(ALMOST, self.elapsed / budget)
        end = stable_end(settings)
        if end is not None and self.progress * settings.steps <= end:
            self.stable_step = 0
        self.budget, self.near_end = budget, 0.0


@dataclass
class State:
    """Counters and the best evaluation of a run; they are saved in checkpoints."""

    step: int = 0
    tokens: int = 0
    words: int = 0  # that were read, where the run counts them
    position: Position = field(default_factory=Position)
    best_value: float | None = None  # of the loss or score in `train.best_by`
    best_step: int = 0
    evaluations_without_gain: int = 0
    evaluated_step: int = 0
    times: Times = field(default_factory=Times)

    def progress(self, settings: ResolvedTraining) -> float:
        """Return the share of the run that is done, from 0 to 1."""
        if settings.budget_seconds is not None:
            return self.times.progress
        return self.step / settings.steps

    def is_over(self, settings: ResolvedTraining) -> bool:
        """Return whether the run is at its end, or stops early."""
        out_of_patience = settings.patience and self.evaluations_without_gain >= settings.patience
        return self.progress(settings) >= 1 or bool(out_of_patience)

    def is_stable_end(self, settings: ResolvedTraining) -> bool:
        """Return whether this is the last step before the decay of the learning rate."""
        if settings.budget_seconds is None:
            return self.step == stable_end(settings)
        return 0 < self.step == self.times.stable_step

    def add_evaluation(self, figures: JsonMapping, best_by: str) -> bool:
        """Note an evaluation of the last step; return whether it is the best one."""
        self.evaluated_step = self.step
        value = held_out_value(figures, best_by)
        improved = is_better(value, self.best_value, best_by)
        self.evaluations_without_gain = 0 if improved else self.evaluations_without_gain + 1
        if improved:
            self.best_value, self.best_step = value, self.step
        return improved

    def to_json(self) -> JsonObject:
        """Return the state as plain values, with `times` only if the run has a budget."""
        values = asdict(self) | {"position": list(self.position)}
        if not self.times.budget:
            del values["times"]
        return values

    @classmethod
    def from_json(cls, values: JsonObject, best_by: str) -> "State":
        """Return the state from the values of `to_json`, also of older versions.

        Older versions have `best_loss` instead: the loss, or minus the score `best_by`.
        """
        values = values | {"position": Position(*values["position"])}
        values["times"] = Times(**values.get("times", {}))
        if "best_loss" in values:
            old = values.pop("best_loss")
            is_score = old is not None and best_by != LOSS
            values["best_value"] = -old if is_score else old
        return cls(**values)


class Tick(NamedTuple):
    """What the clock says at the begin of a step; the same in all processes. Steps need none."""

    elapsed: float = 0.0  # seconds of the budget that are used
    progress: float = 0.0  # share of the run that is done with this step; 1: it is the last one
    near_end: float = 0.0  # 1: an evaluation or checkpoint due after this step is left out


class Pace:
    """The pace of a run of `train.steps`."""

    def __init__(self, settings: ResolvedTraining) -> None:
        self.settings = settings

    def begin_step(self) -> float:
        """Note that a step begins, with making its batches; return when."""
        return time.perf_counter()

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
        """Return what the record of a step needs, so that it can be taken again."""
        return {}

    def end_step(self, state: State, tick: Tick) -> None:
        """Note that a step was taken; `state` is the one after it."""

    def evaluation_is_due(self, state: State) -> bool:
        """Return whether held-out data are due after the last step."""
        every = self.settings.eval_every
        return state.progress(self.settings) >= 1 or bool(every and state.step % every == 0)

    def evaluating(self, state: State) -> AbstractContextManager[None]:
        """Return the context of an evaluation."""
        return nullcontext()

    def checkpoint_is_due(self, state: State) -> bool:
        """Return whether a checkpoint is due after the last step."""
        return state.step % self.settings.save_every == 0

    def saving(self, state: State) -> AbstractContextManager[None]:
        """Return the context in which a checkpoint of `state` is written."""
        return nullcontext()

    def spent(self) -> dict[str, float]:
        """Return what each record says of the time that is used now."""
        return {}

    def seconds_left(self, state: State, tokens_per_second: float) -> float:
        """Return the seconds until the end of the run at this speed."""
        if self.settings.rows_per_step:  # steps to come have as many tokens as those before
            tokens = state.tokens / state.step * (self.settings.steps - state.step)
            return tokens / max(tokens_per_second, 1e-9)
        batches = self._batches[-1] - self._batches[state.step]
        return batches * self.settings.batch_budget / max(tokens_per_second, 1e-9)

    @cached_property
    def _batches(self) -> Sequence[int]:
        """The batches of the run up to each step; a schedule may decide them."""
        size, steps = batches_per_step(self.settings), self.settings.steps
        if isinstance(size, int):
            return range(0, size * (steps + 1), size)
        return [*accumulate(map(size, range(1, steps + 1)), initial=0)]

    def summary(self) -> str:
        """Return what a finished run says of its time, after the number of its tokens."""
        return ""


def held_out_value(figures: JsonMapping, best_by: str) -> float | None:
    """Return the loss or the score `best_by`; None if it is undefined."""
    figure = figures[LOSS] if best_by == LOSS else (figures.get("metrics") or {}).get(best_by)
    return figure if figure is not None and math.isfinite(figure) else None


def is_better(value: float | None, best: float | None, best_by: str) -> bool:
    """Return whether `value` is better than `best`; an undefined value is never better."""
    if value is None or best is None:
        return value is not None
    return value < best if best_by == LOSS else value > best


def best_step(evaluations: Mapping[int, JsonMapping], best_by: str) -> int | None:
    """Return the step of the (first) best evaluation, or None if all are undefined.

    `evaluations` are figures by step, in the order of the run.
    """
    chosen, best = None, None
    for step, figures in evaluations.items():
        current = held_out_value(figures, best_by)
        if is_better(current, best, best_by):
            chosen, best = step, current
    return chosen
