"""Trains on a few batches of a run that is not started, and measures the memory that it takes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlpkit.contracts.batch import Batch
from nlpkit.runs import build, fastest_precision
from nlpkit.runs.fastest_precision import Precision
from nlpkit.runs.planned import Planned
from nlpkit.runs.run import Training
from nlpkit.train import machine, memory, recompute
from nlpkit.train.average import Average
from nlpkit.train.machine import to_device
from nlpkit.train.optim import optimizers

_VARIED = 8  # batches


@dataclass
class Memory:
    """What was measured of memory, in bytes; `per_token` is that of a batch."""

    limit: int
    state: int  # weights, gradients, the optimizer's state, and the program itself
    per_token: float | None = None
    peak: int | None = None
    fits: bool = True


class Trial:
    """A model and its optimizers as the run has them; `precision` is the final one."""

    def __init__(self, plan: Planned, precision: Precision):
        self.plan, self.device = plan, plan.device
        torch.manual_seed(plan.resolved.recipe.seed)
        backend = plan.resolved.recipe.attention.backend
        vocab_size = plan.data.vocab_size
        self.model: Any = build.build_model(plan.part, vocab_size, backend).to(plan.device)
        if plan.settings.gradient_checkpointing:
            recompute.apply(self.model)
        self.training = Training(self.model, plan.data.objective)
        self.precision = fastest_precision.time_batches(precision, self.training, plan.stream)
        if precision.is_open:  # its batches are not those whose memory is measured
            memory.release(plan.device)
            memory.forget_peak(plan.device)
        self.training.precision = self.precision.name
        self.settings = plan.settings.model_copy(update={"precision": self.precision.name})
        self.optimizers = optimizers(self.model, self.settings)
        self.average = (
            Average(self.model, self.settings.average, 1) if self.settings.average else None
        )
        if self.average:
            self.average.restore()  # takes its memory

    def _timed(self, work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def train(self, batch: Batch) -> float:
        """Return the seconds of a forward and backward pass."""
        self.model.train()
        moved = to_device(batch, self.device)
        # A batch without targets is timed, too.
        num_targets = {name: max(1, number) for name, number in moved.num_targets.items()}

        def work() -> None:
            self.training(moved).mean(num_targets).backward()

        return self._timed(work)

    def update(self) -> float:
        """Return the seconds of clipping and the optimizers' step."""

        def work() -> None:
            clip = self.settings.clip or float("inf")
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            for optimizer in self.optimizers:
                optimizer.step()
            self.zero_grad()

        return self._timed(work)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def evaluate(self, batch: Batch) -> float:
        """Return the seconds of a forward pass without gradients."""
        self.model.eval()
        moved = to_device(batch, self.device)
        with torch.no_grad():
            return self._timed(lambda: self.training(moved))


def peak_of_run(longest_peak: int, last_peak: int, device: torch.device) -> int:
    """Return the peak of a run, from the peaks after the longest and the timed batches.

    A CPU's heap grows with the variety of batches, ever more slowly: the growth during the timed
    batches is counted twice. On a GPU it does not count.
    """
    return last_peak + (last_peak - longest_peak if device.type == "cpu" else 0)


def longest(plan: Planned) -> list[int]:
    """Return the bins of the first epoch with the most attention and with the most tokens."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    each = sizes[bins.items % len(sizes)].astype(np.float64)
    costs = [np.add.reduceat(x, bins.offsets[:-1]) for x in (each**2, each)]
    return sorted({int(cost.argmax()) for cost in costs})


def varied(plan: Planned) -> list[int]:
    """Return a few bins of the first epoch, from its begin to its end."""
    bins = len(plan.stream.plan(0))
    return [int(place) for place in np.linspace(0, bins - 1, min(_VARIED, bins))]


def longest_tokens(plan: Planned) -> int:
    """Return the most tokens that a batch of the first epoch has."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    return max(int(sizes[bins[index] % len(sizes)].sum()) for index in longest(plan))


def measure_memory(trial: Trial, found: Memory) -> None:
    """Train on growing parts of a longest batch, then on the longest batches, while they fit."""
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
    taken: list[float] = []
    for items in [*parts, *heavy]:
        batch = examples.batch(items, 0)
        if items is heavy[0] and plan.settings.batches_per_step == 1:
            trial.zero_grad()
        if taken and found.state + taken[-1] * batch.tokens > found.limit:
            found.fits = False
            return
        trial.train(batch)
        taken.append((machine.used_memory(device)[1] - found.state) / batch.tokens)
        found.per_token = taken[-1]
    trial.update()
