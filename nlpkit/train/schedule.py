"""The length of a run in steps, and the learning rate of a step. Importable without torch.

`epochs`, `warmup_ratio` and `decay_ratio` become numbers of steps: rounded up, as in
`transformers`, but in exact arithmetic: 7 % of 100 steps are 7.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from pydantic import Field

from nlpkit.data.loader import Stream
from nlpkit.train.settings import Config
from nlpkit.units import parse_duration

GRID = 1_000_000  # parts of the schedule of a run with a budget of time


class ResolvedTraining(Config):
    """Training settings with the length in steps.

    With a budget, `steps` is GRID: the schedule is a function of the share of the run that is done,
    on this grid.
    """

    steps: int = Field(gt=0, description="optimizer steps in all")
    budget_seconds: float | None = Field(None, gt=0, description="`budget`, which is None then")
    decay_steps: int = Field(0, ge=0, description="steps of linear decay at the end of wsd")
    zero_at_last_step: bool = Field(
        False, description="linear and cosine as in older versions, whose last step had rate 0"
    )

    @property
    def known_steps(self) -> int | None:
        """The number of steps, or None with a budget of time."""
        return self.steps if self.budget_seconds is None else None

    def decay_progress(self, step: float) -> float:
        """Return the share of the steps after the warm-up that are done: 0 at their begin.

        It is 1 one step after the last step, so that no step has rate 0.
        """
        first, end = max(1, self.warmup_steps), self.steps + 1
        if self.zero_at_last_step:
            first, end = self.warmup_steps, self.steps
        return max(0.0, (step - first) / max(1, end - first))


def resolve_steps(settings: Config, stream: Stream | None) -> ResolvedTraining:
    """Return the settings with `steps`, `warmup_steps` and `decay_steps`.

    With a budget, steps are parts of the GRID. The batches of `stream` are needed and planned only
    if the length is given in epochs; raise `UsageError` if these are too many.
    """
    steps = settings.steps if settings.budget is None else GRID
    if steps is None:
        from nlpkit.train.step_sizes import count_steps

        steps = count_steps(_exact(settings.epochs or 0), settings, stream)
    warmup = settings.warmup_steps or math.ceil(_exact(settings.warmup_ratio or 0) * steps)
    decays = "decay_ratio" in settings.schedule.module.READS
    filled = {
        "steps": steps,
        "warmup_steps": warmup,
        "decay_steps": math.ceil(_exact(settings.decay_ratio) * steps) if decays else 0,
        "epochs": None,
        "words": None,
        "warmup_ratio": None,
        "budget": None,
        "budget_seconds": parse_duration(settings.budget) if settings.budget else None,
    }
    return ResolvedTraining.model_validate(settings.model_dump() | filled)


def describe_long_warmup(settings: ResolvedTraining) -> str:
    """Return a note on a warm-up that is longer than the training, as in a shortened run."""
    return (
        f"train.warmup_steps: {settings.warmup_steps} is more than the steps of this run "
        f"({settings.steps}): the learning rate stays below train.lr; train.warmup_ratio follows "
        "the length"
    )


def _exact(value: float) -> Fraction:
    """Return the decimal number that the user wrote: 0.07 is exactly 7/100."""
    return Fraction(repr(value))


def lr_factor(step: float, settings: ResolvedTraining) -> float:
    """Return the learning rate of step 1, 2, … `settings.steps`, relative to the peak."""
    chosen, warmup = settings.schedule, settings.warmup_steps
    shape = chosen.module.factor(step, chosen.config, settings)
    low = settings.min_lr_ratio if "min_lr_ratio" in chosen.module.READS else 0.0
    return min(step / warmup if step < warmup else 1.0, low + (1 - low) * shape)


def make_stream(settings: Config) -> Callable[..., Stream]:
    """Return `Stream` with the size of steps and batches: what is left are its other arguments."""
    if settings.rows_per_step:
        from nlpkit.train.step_sizes import make_row_stream

        return make_row_stream(settings)
    size = batches_per_step(settings)
    return partial(Stream, budget=settings.batch_budget, batches_per_step=size)


def batches_per_step(settings: Config) -> int | Callable[[int], int]:
    """Return the batches of a step over all processes, or a function of its number 1, 2, …."""
    if settings.schedule.module.batches is None and "tokens_per_step" not in settings.phases:
        return settings.batches_per_step
    from nlpkit.train.step_sizes import batches_of_schedule

    return batches_of_schedule(settings)


def stable_end(settings: ResolvedTraining) -> int | None:
    """Return the last step before the decay of `wsd`, or None. A longer run is equal up to it."""
    end = settings.steps - settings.decay_steps
    return end if 0 < end < settings.steps else None
