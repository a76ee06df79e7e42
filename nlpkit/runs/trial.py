"""Trains on a few batches of a run that is not started: what do they take of memory and time?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nlpkit.contracts.batch import Batch
from nlpkit.data.loader import held_out_batches
from nlpkit.runs import build, fastest_precision
from nlpkit.runs.fastest_precision import Precision
from nlpkit.runs.planned import Planned
from nlpkit.train import machine, memory
from nlpkit.train.average import Average
from nlpkit.train.optim import optimizers
from nlpkit.train.progress import Show, show_nothing

_VARIED = 8  # batches
_TIMED_SECONDS = 20.0


@dataclass
class Times:
    """Seconds of a batch (with making it, unless workers do), an update, a held-out token."""

    batches: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    update: float = 0.0
    held_out_token: float = 0.0


@dataclass
class Measured:
    """What was measured; of memory in bytes."""

    precision: Precision
    limit: int
    state: int  # weights, gradients, the optimizer's state, and the program itself
    per_token: float | None = None  # of a batch
    peak: int | None = None  # extrapolated where the longest batch does not fit
    fits: bool = False
    attention: str = ""
    times: Times = field(default_factory=Times)


def measure(
    plan: Planned, precision: Precision, limit: int | None = None, show: Show = show_nothing
) -> Measured:
    """Train on the longest batches and on a few others of the first epoch, while they fit.

    A system without memory may kill the process, so parts of a batch are tried first; a batch that
    would not fit by their figures is not tried. `limit` is in bytes; None: what the device has.
    """
    device = plan.device
    memory.release(device)
    memory.forget_peak(device)
    most, now = memory.limit(device), machine.used_memory(device)[0]
    frozen = 4 * sum(each.parameters for each in plan.part.frozen)  # they are there already
    found = Measured(precision, min(most, limit or most), now + plan.state_bytes - frozen)
    if found.state <= found.limit:
        try:
            _try(Trial(plan, precision), found, show)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_shortage(error):
                raise
        memory.release(device)
    if found.peak is None and found.per_token is not None:
        found.peak = int(found.state + found.per_token * longest_tokens(plan))
    return found


class Trial:
    """A model and its optimizers as the run has them; `precision` is the final one."""

    def __init__(self, plan: Planned, precision: Precision):
        self.plan, self.device = plan, plan.device
        made = build.build_training(plan.resolved, plan.part, plan.data, plan.settings)
        self.training = made.to(plan.device)
        self.model: Any = made.model
        self.precision = fastest_precision.time_batches(precision, self.training, plan.stream)
        if precision.is_open:  # its batches are not those whose memory is measured
            memory.release(plan.device)
            memory.forget_peak(plan.device)
        self.training.precision = self.precision.name
        self.settings = plan.settings.model_copy(update={"precision": self.precision.name})
        self.optimizers = optimizers(self.model, self.settings)
        if self.settings.average:
            self.average = Average(self.model, self.settings.average, 1)
            self.average.restore()  # takes its memory

    def _timed(self, work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def train(self, batch: Batch) -> float:
        """Return the seconds of a forward and backward pass."""
        self.model.train()
        moved = machine.to_device(batch, self.device)
        return self._timed(lambda: fastest_precision.compute_gradients(self.training, moved))

    def update(self) -> float:
        """Return the seconds of clipping and the optimizers' step."""

        def work() -> None:
            clip = self.settings.clip or float("inf")
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            for optimizer in self.optimizers:
                optimizer.step()
            self.training.zero_grad()

        return self._timed(work)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """Return the seconds of a forward pass without gradients."""
        self.model.eval()
        moved = machine.to_device(batch, self.device)
        return self._timed(lambda: self.training(moved))


def longest(plan: Planned) -> list[int]:
    """Return the bins of the first epoch with the most attention and with the most tokens."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    each = sizes[bins.items % len(sizes)].astype(np.float64)
    costs = [np.add.reduceat(x, bins.offsets[:-1]) for x in (each**2, each)]
    return sorted({int(cost.argmax()) for cost in costs})


def longest_tokens(plan: Planned) -> int:
    """Return the most tokens that a batch of the first epoch has."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    return max(int(sizes[bins[index] % len(sizes)].sum()) for index in longest(plan))


def _try(trial: Trial, found: Measured, show: Show) -> None:
    """Measure memory and time; `peak` stays None if the longest batches do not fit."""
    found.precision = trial.precision
    fits = _train_longest(trial, found, show)
    found.attention = str(getattr(trial.model, "attention_choice", ""))
    if not fits:
        return
    longest_peak = machine.used_memory(trial.device)[1]
    measure_time(trial, found.times, show)
    found.peak = machine.used_memory(trial.device)[1]
    if trial.device.type == "cpu":
        # The heap grows with the variety of batches, ever more slowly: what the varied batches
        # added counts twice.
        found.peak += found.peak - longest_peak
    found.fits = found.peak <= found.limit


def _train_longest(trial: Trial, found: Measured, show: Show) -> bool:
    """Train on growing parts of a longest batch, then on the longest; return whether they fit."""
    plan, device = trial.plan, trial.device
    bins, examples = plan.stream.plan(0), plan.data.examples
    heavy = [bins[index] for index in longest(plan)]
    # The first example allocates the optimizers' state and the buffers of the backends.
    before = machine.used_memory(device)[0]
    first = examples.batch(heavy[0][:1], 0)
    trial.train(first)
    found.per_token = (machine.used_memory(device)[1] - before) / first.tokens
    trial.update()
    found.state = machine.used_memory(device)[0] + 4 * plan.trained
    parts = [heavy[0][: len(heavy[0]) // n] for n in (16, 4) if len(heavy[0]) >= n]
    for number, items in enumerate([*parts, *heavy]):
        batch = examples.batch(items, 0)
        if items is heavy[0] and plan.settings.batches_per_step == 1:
            trial.training.zero_grad()
        # What the first example takes is not yet the price of a token.
        if number and found.state + found.per_token * batch.tokens > found.limit:
            return False
        show("measured memory, batches", number, len(parts) + len(heavy))
        trial.train(batch)
        found.per_token = (machine.used_memory(device)[1] - found.state) / batch.tokens
    trial.update()
    return True


def measure_time(trial: Trial, times: Times, show: Show = show_nothing) -> None:
    """Train on a few batches of the first epoch, from its begin to its end, and evaluate one."""
    plan = trial.plan
    bins, examples = plan.stream.plan(0), plan.data.examples
    count = min(_VARIED, len(bins))
    for index in np.linspace(0, len(bins) - 1, count).astype(int):
        show("timed batches", len(times.batches), count)
        start = time.perf_counter()
        batch = examples.batch(bins[index], 0)
        making = 0.0 if trial.settings.workers else time.perf_counter() - start
        times.batches.append(making + trial.train(batch))
        times.tokens.append(batch.tokens)
        if sum(times.batches) > _TIMED_SECONDS:
            break
    times.update = trial.update()
    if plan.data.held_out is not None:
        _, make = held_out_batches(plan.data.held_out, plan.stream.budget)
        batch = make(0)
        times.held_out_token = trial.evaluate(batch) / batch.tokens
