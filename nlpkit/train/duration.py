"""The length of a run: converts `epochs`, `warmup_ratio` and `decay_ratio` to numbers of steps.

All are rounded up, as in `transformers`, but in exact arithmetic: 7 % of 100 steps are 7. The
recipe keeps the original settings; loop, learning rate and plan only use steps.
"""

import math
from fractions import Fraction

from nlpkit.config import LARGEST
from nlpkit.data.loader import Stream
from nlpkit.durations import seconds
from nlpkit.errors import UsageError
from nlpkit.train.settings import Config, ResolvedTraining

GRID = 1_000_000  # parts of the schedule of a run with a budget of time


def batches_per_epoch(stream: Stream) -> Fraction:
    """Return the number of batches in one epoch, estimated from the packing of the first epoch.

    Examples that are carried over to the next epoch count for their own epoch: if a corpus fills
    2.5 batches, 2 epochs are 5 batches, although the first one is planned as 2. The result is the
    same in every process.
    """
    bins, sizes = stream.plan(0), stream.examples.sizes
    packed, leftover = (
        int(sizes[items % len(sizes)].sum()) for items in (bins.items, bins.leftover)
    )
    return Fraction(len(bins) * (packed + leftover), packed)


def resolve_steps(settings: Config, stream: Stream) -> ResolvedTraining:
    """Return the settings with `steps`, `warmup_steps` and `decay_steps`.

    `epochs` and `warmup_ratio` are None then. With a budget, steps are parts of the GRID.

    The batches of `stream` are planned only if the length is given in epochs; raise `UsageError` if
    these are too many.
    """
    steps = settings.steps if settings.budget is None else GRID
    if steps is None:
        epochs = _exact(settings.epochs or 0)
        steps = math.ceil(epochs * batches_per_epoch(stream) / settings.batches_per_step)
        if steps > LARGEST["int"]:
            most = LARGEST["int"]
            raise UsageError(f"train.epochs: {settings.epochs:g} are more than {most} steps")
    warmup = settings.warmup_steps or math.ceil(_exact(settings.warmup_ratio or 0) * steps)
    decay = settings.decay_ratio if settings.schedule == "wsd" else 0
    filled = {
        "steps": steps,
        "warmup_steps": warmup,
        "decay_steps": math.ceil(_exact(decay) * steps),
        "epochs": None,
        "warmup_ratio": None,
        "budget": None,
        "budget_seconds": seconds(settings.budget) if settings.budget else None,
    }
    return ResolvedTraining.model_validate(settings.model_dump() | filled)


def long_warmup(settings: ResolvedTraining) -> str | None:
    """Return a note if the warm-up is longer than the training, as in a run that was shortened."""
    if settings.warmup_steps <= settings.steps:
        return None
    return (
        f"train.warmup_steps: {settings.warmup_steps} is more than the {settings.steps} steps of "
        "this run: the learning rate stays below train.lr; train.warmup_ratio follows the length"
    )


def _exact(value: float) -> Fraction:
    """Return the decimal number that the user wrote: 0.07 is exactly 7/100."""
    return Fraction(repr(value))
