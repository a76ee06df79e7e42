"""How long a run lasts: `epochs` and `warmup_ratio` as numbers of steps.

Both are rounded up, as `transformers` does, but in exact arithmetic: 7 % of 100 steps are 7. The
recipe keeps what was written; what computes (loop, learning rate, plan) sees steps alone.
"""

import math
from fractions import Fraction

from nlpkit.data.loader import Stream
from nlpkit.errors import UsageError
from nlpkit.train.settings import Config, ResolvedTraining


def batches_per_epoch(stream: Stream) -> Fraction:
    """Return how many batches as full as those of the first epoch hold one epoch's examples.

    What an epoch hands on to the next one counts in its own: of 2.5 batches a corpus, 2 epochs are
    5 batches, though the first is planned as 2. The same in every process: no plan knows of ranks.
    """
    bins, sizes = stream.plan(0), stream.examples.sizes
    packed, rest = (int(sizes[items % len(sizes)].sum()) for items in (bins.items, bins.leftover))
    return Fraction(len(bins) * (packed + rest), packed)


def resolve_steps(settings: Config, stream: Stream) -> ResolvedTraining:
    """Return the settings with `steps` and `warmup_steps` filled in, the alternatives None.

    `stream` is asked for its packing only if the length is given in epochs.

    Raises:
        UsageError: the warm-up is longer than the epochs are.
    """
    steps = settings.steps
    if steps is None:
        epochs = _exact(settings.epochs or 0)
        steps = math.ceil(epochs * batches_per_epoch(stream) / settings.batches_per_step)
    warmup = settings.warmup_steps or math.ceil(_exact(settings.warmup_ratio or 0) * steps)
    if warmup > steps:
        raise UsageError(
            f"train.warmup_steps: {warmup} is more than the {steps} steps that train.epochs: "
            f"{settings.epochs:g} makes of these data; lower it, or give train.warmup_ratio instead"
        )
    filled = {"steps": steps, "warmup_steps": warmup, "epochs": None, "warmup_ratio": None}
    return ResolvedTraining.model_validate(settings.model_dump() | filled)


def _exact(value: float) -> Fraction:
    """Return the decimal number that was written: 0.07 is 7/100, which no float is."""
    return Fraction(repr(value))
