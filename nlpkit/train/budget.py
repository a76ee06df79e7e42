"""The clock of a run with a budget of time: how much of the run is done, and when it ends.

The share that is done is (time used) / (budget - time of the last evaluation and checkpoint). It is
read once for each step, at its begin, and logged with it. A step that is computed again takes what
was logged: so it is the same step, bit for bit. After a kill, the steps after the newest checkpoint
are such steps. `replay.jsonl` keeps their lines, because `metrics.jsonl` loses them when the run
resumes: it may be killed again before it has logged them anew.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nlpkit.disk import name_path_in_errors, write_text
from nlpkit.plural import number_of
from nlpkit.train.schedule import ResolvedTraining, stable_end
from nlpkit.train.state import ALMOST, Pace, State, Tick
from nlpkit.units import format_duration

REPLAY = "replay.jsonl"  # in the run directory
now = time.monotonic
cpu_now = time.process_time  # of all threads of this process
# When this share is done, there has been an evaluation and a checkpoint, to know what they take.
KNOWN_BY = 0.1
_SMOOTHING = 0.9


@dataclass(frozen=True)
class Recorded:
    """Ticks of steps that were taken before, and the time that was used with the last of them."""

    ticks: Mapping[int, Tick] = field(default_factory=dict)
    spent: float = 0.0


class Clock(Pace):
    """Seconds of the budget that the run has used, over all its processes one after another.

    An evaluation or a checkpoint is due where there is time for it. See `Pace` for the methods.
    """

    def __init__(
        self, settings: ResolvedTraining, evaluates: bool, state: State, recorded: Recorded
    ):
        """Start the clock; steps in `recorded` take its ticks."""
        super().__init__(settings)
        assert settings.budget_seconds is not None
        self.budget, self.evaluates = settings.budget_seconds, evaluates
        self._recorded = recorded.ticks
        self._counts_evaluations = settings.budget_clock == "wall"
        self._now = cpu_now if settings.budget_clock == "cpu" else now
        self._used = max(state.times.elapsed, recorded.spent)
        self._least = 0.0  # the clock never goes back, also after times of another run
        self._started = self._step_started = self._now()
        self._first = True
        self._saved_step = state.step

    def elapsed(self) -> float:
        """Return the seconds of the budget that are used now."""
        return self._at(self._now())

    def _at(self, moment: float) -> float:
        return max(self._least, self._used + moment - self._started)

    def tick(self, state: State) -> Tick:
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
        progress = max(progress, times.progress)  # times that change do not turn it back
        return Tick(elapsed, progress, float(after_next + self._due(step, state) > self.budget))

    def _due(self, step: int, state: State) -> float:
        """Return the seconds of the evaluation and the checkpoint that are due after a step."""
        every = self.settings.eval_every
        if self.evaluates and every and step % every == 0:
            return state.times.evaluation + state.times.saving
        return state.times.saving if step % self.settings.save_every == 0 else 0.0

    def schedule_step(self, state: State, tick: Tick) -> float:
        return position(state.times.progress, tick.progress, self.settings)

    def decay_begins(self, state: State, schedule_step: float) -> bool:
        end = stable_end(self.settings)
        if end is None or schedule_step <= end or not state.step or state.times.stable_step:
            return False
        state.times.stable_step = state.step
        return True

    def logged(self, tick: Tick) -> dict[str, float]:
        record = {"elapsed": tick.elapsed, "progress": tick.progress}
        return record | ({"near_end": tick.near_end} if tick.near_end else {})

    def begin_step(self) -> float:
        self._step_started = self._now()
        return super().begin_step()

    def end_step(self, state: State, tick: Tick) -> None:
        """Note the time of a step; the first one of a process, which takes longer, does not count.

        `state.times.step` is smoothed over the last steps.
        """
        state.times.progress, state.times.near_end = tick.progress, tick.near_end
        taken, before = self._now() - self._step_started, state.times.step
        if not self._first:
            state.times.step = _SMOOTHING * before + (1 - _SMOOTHING) * taken if before else taken
        self._first = False

    def evaluation_is_due(self, state: State) -> bool:
        done, first = state.times.progress, not state.evaluated_step
        if done >= 1 or (first and done >= KNOWN_BY and self._counts_evaluations):
            return True
        return super().evaluation_is_due(state) and not state.times.near_end

    @contextmanager
    def evaluating(self, state: State) -> Iterator[None]:
        started = self._now()
        yield
        if self._counts_evaluations:
            state.times.evaluation = self._now() - started
        else:
            self._started += self._now() - started

    def checkpoint_is_due(self, state: State) -> bool:
        if not state.times.saving and state.times.progress >= KNOWN_BY:
            return self._saved_step != state.step
        return super().checkpoint_is_due(state) and not state.times.near_end

    @contextmanager
    def saving(self, state: State) -> Iterator[None]:
        started = self._now()
        # What is used when the checkpoint is written.
        state.times.elapsed = self.elapsed() + state.times.saving
        yield
        if self._saved_step != state.step:  # else only the state was written again
            state.times.saving = self._now() - started
            self._saved_step = state.step

    def spent(self) -> dict[str, float]:
        return {"spent": self.elapsed()}

    def seconds_left(self, state: State, tokens_per_second: float) -> float:
        return max(0.0, self.budget - self.elapsed())

    def summary(self) -> str:
        used, budget = format_duration(self.elapsed()), format_duration(self.budget)
        return f" in {used} of a budget of {budget}"


def position(before: float, after: float, settings: ResolvedTraining) -> float:
    """Return the step of the schedule that is the middle of a step of a run with a budget.

    `before` and `after` are the shares of the run that are done without it and with it. `before` is
    larger only in the first step with a longer budget.
    """
    return max(1.0, (min(before, after) + after) / 2 * settings.steps)


def lost_ticks(metrics: Path, state: State, kept: bool, note: Callable[[str], None]) -> Recorded:
    """Return the ticks of the steps after the checkpoint, and keep them in `replay.jsonl`.

    Call it before `Metrics` opens. If they are not `kept`, since the budget has changed, there are
    none, but the time of these steps is used.
    """
    replay = metrics.with_name(REPLAY)
    before, now = recorded(replay), recorded(metrics)
    spent = max(before.spent, now.spent)
    ticks = {n: tick for n, tick in {**before.ticks, **now.ticks}.items() if n > state.step}
    if not kept:
        ticks = {}
    if ticks or replay.exists():
        write_replay(replay, ticks, spent)
    if ticks:
        note(
            f"{number_of(len(ticks), 'steps')} after the checkpoint, up to step {max(ticks)}, are "
            "computed again with their times"
        )
    return Recorded(ticks, spent)


def write_replay(path: Path, ticks: Mapping[int, Tick], spent: float = 0.0) -> None:
    """Write the ticks of steps that are to be taken again."""
    rows = [{"spent": spent}, *({"step": n, **t._asdict()} for n, t in sorted(ticks.items()))]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def recorded(path: Path) -> Recorded:
    """Return what a `metrics.jsonl` says of a run with a budget; incomplete lines are left out."""
    ticks, spent = {}, 0.0
    with name_path_in_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.split("\n"):
        try:
            record = json.loads(line)
            spent = max(spent, float(record.get("spent", 0.0)))
            if "progress" in record:
                values = (record["elapsed"], record["progress"], record.get("near_end", 0.0))
                ticks[int(record["step"])] = Tick(*map(float, values))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return Recorded(ticks, spent)
