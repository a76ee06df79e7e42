"""The clock of a run with a budget of time: how much of the run is done, and when it ends.

The share that is done is (time used) / (budget - time of the last evaluation and checkpoint). It is
read once for each step, at its begin, and logged with it. A step that is computed again takes what
was logged: so it is the same step, bit for bit.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nlpkit.disk import name_path_in_errors
from nlpkit.train.settings import ResolvedTraining
from nlpkit.train.state import ALMOST, State

now = time.monotonic
# When this share is done, there has been an evaluation and a checkpoint, to know what they take.
KNOWN_BY = 0.1
_SMOOTHING = 0.9


class Tick(NamedTuple):
    """What the clock says at the begin of a step; the same in all processes."""

    elapsed: float  # seconds of the budget that are used
    progress: float  # share of the run that is done with this step; 1: it is the last one
    near_end: float = 0.0  # 1: an evaluation or checkpoint due after this step is left out


@dataclass(frozen=True)
class Recorded:
    """Ticks of steps that were taken before, and the time that was used with the last of them."""

    ticks: Mapping[int, Tick] = field(default_factory=dict)
    spent: float = 0.0


class Clock:
    """Seconds of the budget that the run has used, over all its processes one after another."""

    def __init__(
        self, settings: ResolvedTraining, evaluates: bool, state: State, recorded: Recorded
    ):
        """Start the clock; steps in `recorded` take its ticks."""
        assert settings.budget_seconds is not None
        self.budget, self.settings, self.evaluates = settings.budget_seconds, settings, evaluates
        self._recorded = recorded.ticks
        self._used = max(state.times.elapsed, recorded.spent)
        self._least = 0.0  # the clock never goes back, also after times of another run
        self._started = self._step_started = now()
        self._first = True
        self.saved_step = state.step

    def elapsed(self) -> float:
        """Return the seconds of the budget that are used now."""
        return self._at(now())

    def _at(self, moment: float) -> float:
        return max(self._least, self._used + moment - self._started)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.budget - self.elapsed())

    def tick(self, state: State) -> Tick:
        """Return what holds for the step after `state`, which began with the last `begin_step`."""
        step, times = state.step + 1, state.times
        if step in self._recorded:
            self._least = max(self._least, self._recorded[step].elapsed)
            return self._recorded[step]
        elapsed = self._at(self._step_started)
        end = times.saving + (times.evaluation if self.evaluates else 0.0)
        after_next = elapsed + 2 * times.step + end
        if after_next > self.budget:
            return Tick(elapsed, 1.0)
        progress = min(ALMOST, (elapsed + times.step) / (self.budget - end))
        return Tick(elapsed, progress, float(after_next + self._due(step, state) > self.budget))

    def _due(self, step: int, state: State) -> float:
        """Return the seconds of the evaluation and the checkpoint that are due after a step."""
        every = self.settings.eval_every
        if self.evaluates and every and step % every == 0:
            return state.times.evaluation + state.times.saving
        return state.times.saving if step % self.settings.save_every == 0 else 0.0

    def begin_step(self) -> None:
        """Note that a step begins, with making its batches."""
        self._step_started = now()

    def end_step(self, state: State) -> None:
        """Note the time of a step; the first one of a process, which takes longer, does not count.

        `state.times.step` is smoothed over the last steps.
        """
        taken, before = now() - self._step_started, state.times.step
        if not self._first:
            state.times.step = _SMOOTHING * before + (1 - _SMOOTHING) * taken if before else taken
        self._first = False


def recorded(path: Path) -> Recorded:
    """Return what a `metrics.jsonl` says of a run with a budget; incomplete lines are left out."""
    ticks, spent = {}, 0.0
    with name_path_in_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            record = json.loads(line)
            spent = max(spent, float(record.get("spent", 0.0)))
            if "progress" in record:
                values = (record["elapsed"], record["progress"], record.get("near_end", 0.0))
                ticks[int(record["step"])] = Tick(*map(float, values))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return Recorded(ticks, spent)
