"""How many steps epochs are, and how many batches steps have where they differ. Imports no torch.

Steps differ where they have a number of rows, or where the schedule decides their size.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import accumulate, count

from nlpkit.config import LARGEST
from nlpkit.data.loader import Stream
from nlpkit.data.row_steps import RowStream
from nlpkit.errors import UsageError
from nlpkit.train import phases
from nlpkit.train.schedule import ResolvedTraining, batches_per_step
from nlpkit.train.settings import Config


def batches_of_schedule(settings: Config) -> Callable[[int], int]:
    """Return how many batches the schedule, or a list of sizes, gives to step 1, 2, ….

    A list needs the number of steps.
    """
    if "tokens_per_step" in settings.phases:
        return phases.count_batches(settings, settings.steps or 1)
    schedule, usual = settings.schedule, settings.batches_per_step
    batches = schedule.module.batches
    assert batches is not None

    def of_step(step: int) -> int:
        number = batches(step, schedule.config, usual)
        if type(number) is not int or number < 1:
            raise UsageError(
                f"train.schedule: {schedule.name} gives step {step} {number!r} batches"
            )
        return number

    return of_step


def make_row_stream(settings: Config) -> Callable[..., RowStream]:
    """Return `RowStream` with the size of steps and batches, as `schedule.make_stream`.

    Raises:
        UsageError: the schedule decides the size of each step.
    """
    assert settings.rows_per_step is not None
    if settings.schedule.module.batches is not None:
        raise UsageError(
            f"train.rows_per_step: schedule {settings.schedule.name} decides the batches of each "
            "step; set tokens_per_step"
        )
    return partial(RowStream, budget=settings.batch_budget, rows=settings.rows_per_step)


def batches_per_epoch(stream: Stream) -> Fraction:
    """Return the number of batches in one epoch, estimated from the packing of the first epoch.

    Examples that are carried over to the next epoch count for their own epoch: if a corpus fills
    2.5 batches, 2 epochs are 5 batches, although the first one is planned as 2. The result is the
    same in every process.
    """
    _check_first_epoch(stream)
    bins, sizes = stream.plan(0), stream.examples.sizes
    packed, leftover = (
        int(sizes[items % len(sizes)].sum()) for items in (bins.items, bins.leftover)
    )
    return Fraction(len(bins) * (packed + leftover), packed)


def _check_first_epoch(stream: Stream) -> None:
    if not len(stream.plan(0)):
        raise UsageError(
            "data.train: with these weights the first epoch has no example, and so no length; "
            "raise a weight"
        )


def count_steps(epochs: Fraction, settings: Config, stream: Stream | None) -> int:
    """Return the number of steps of so many epochs, rounded up at the end.

    With `rows_per_step`, each epoch is rounded up, as no step has rows of two epochs.
    With `train.words` it is the number of steps that read so many words.

    Raises:
        UsageError: these are too many.
    """
    steps, most = _count_steps(epochs, settings, stream), LARGEST["int"]
    if steps > most:
        raise UsageError(f"train.epochs: {float(epochs):g} are more than {most} steps")
    return steps


def _count_steps(epochs: Fraction, settings: Config, stream: Stream | None) -> int:
    assert stream is not None
    if settings.words is not None:
        from nlpkit.data import words

        batches = Fraction(len(words.count_bins(stream, words=settings.words)))
        if isinstance(stream, RowStream):
            return next(n for n in count(1) if stream.bins_of(n - 1).stop >= batches)
    elif isinstance(stream, RowStream):
        _check_first_epoch(stream)
        return math.ceil(epochs * stream.steps_per_epoch)
    else:
        batches = epochs * batches_per_epoch(stream)
    if "tokens_per_step" in settings.phases:
        steps = math.ceil(batches / phases.mean_batches(settings))
        sizes = phases.count_batches
        while settings.words and sum(map(sizes(settings, steps), range(1, steps + 1))) < batches:
            steps += 1
        return steps
    size = batches_per_step(settings)
    if isinstance(size, int):
        return math.ceil(batches / size)
    return next(n for n, end in enumerate(accumulate(map(size, count(1))), 1) if end >= batches)


def mean_batches(settings: ResolvedTraining, stream: Stream | None) -> float:
    """Return the mean number of batches of a step; with a budget of time, of the first one.

    With `rows_per_step`, which needs the `stream`, it is that of the first epoch.
    """
    if isinstance(stream, RowStream):
        _check_first_epoch(stream)
        return len(stream.plan(0)) / stream.steps_per_epoch
    if "tokens_per_step" in settings.phases:
        return float(phases.mean_batches(settings))
    size, steps = batches_per_step(settings), settings.known_steps or 1
    return size if isinstance(size, int) else sum(map(size, range(1, steps + 1))) / steps
