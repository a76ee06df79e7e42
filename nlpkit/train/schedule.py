"""The length of a run in steps, and the learning rate of a step. Importable without torch.

`epochs`, `warmup_ratio` and `decay_ratio` become numbers of steps: rounded up, as in
`transformers`, but in exact arithmetic: 7 % of 100 steps are 7.
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


def position(before: float, after: float, settings: ResolvedTraining) -> float:
    """Return the step of the schedule that is the middle of a step of a run with a budget.

    `before` and `after` are the shares of the run that are done without it and with it. `before` is
    larger only in the first step with a longer budget.
    """
    return max(1.0, (min(before, after) + after) / 2 * settings.steps)


def lr_factor(step: float, settings: ResolvedTraining) -> float:
    """Return the learning rate of step 1, 2, … `settings.steps`, relative to the peak.

    `noam` is Vaswani et al. 2017, eq. 3, scaled to 1 at its peak, the end of the warm-up. `wsd`
    (warm-up, stable, decay; Hu et al. 2024, MiniCPM, sec. 4) falls linearly in its last part, as in
    Hägele et al. 2024. `linear`, `cosine` and `wsd` reach `min_lr_ratio` one step after the last
    step, so that no step has rate 0.
    """
    warmup = settings.warmup_steps
    rising = min(1.0, step / warmup) if warmup else 1.0
    if settings.schedule == "wsd":
        stable = settings.steps - settings.decay_steps
        fallen = max(0, step - stable) / (settings.decay_steps + 1)
        return min(rising, _between(settings.min_lr_ratio, 1 - fallen))
    if step < warmup:
        return rising
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "noam":
        return math.sqrt(warmup / step)
    if settings.zero_at_last_step:
        progress = (step - warmup) / max(1, settings.steps - warmup)
    else:
        peak = max(1, warmup)
        progress = (step - peak) / (settings.steps + 1 - peak)
    shape = (
        1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    return _between(settings.min_lr_ratio, shape)


def stable_end(settings: ResolvedTraining) -> int | None:
    """Return the last step before the decay of `wsd`, or None. A longer run is equal up to it."""
    end = settings.steps - settings.decay_steps
    return end if 0 < end < settings.steps else None


def _between(low: float, shape: float) -> float:
    return low + (1 - low) * shape
