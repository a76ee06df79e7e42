"""Measures what a run would cost: a few of its batches, also the longest, and the disk."""

import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nlpkit.data.loader import held_out_batches
from nlpkit.data.pack import Batch
from nlpkit.disk import user_path
from nlpkit.objectives.contract import Loss, forward
from nlpkit.plan import Plan
from nlpkit.runs import build, fastest_backend
from nlpkit.train import machine, memory
from nlpkit.train.average import Average
from nlpkit.train.budget import KNOWN_BY
from nlpkit.train.loop import to_device
from nlpkit.train.optim import optimizers

FULL = 0.8  # share of the memory above which the plan warns
_TIMED_BATCHES, _TIMED_SECONDS = 8, 20.0
_SAMPLE_BYTES = 1 << 25


@dataclass
class Memory:
    """What was measured of memory, in bytes; `per_token` is that of a batch."""

    limit: int
    state: int  # weights, gradients, the optimizer's state, and the program itself
    per_token: float | None = None
    peak: int | None = None
    fits: bool = True


@dataclass
class Times:
    """Seconds of a batch (with making it, unless workers do), an update, a held-out token."""

    batches: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    update: float = 0.0
    held_out_token: float = 0.0


class _Trial:
    """A model and its optimizers as the run has them."""

    def __init__(self, plan: Plan, precision: str):
        self.plan, self.device = plan, plan.device
        self.settings = plan.settings
        torch.manual_seed(plan.resolved.recipe.seed)
        backend = plan.resolved.recipe.attention.backend
        vocab_size = plan.data.vocab_size
        self.model: Any = build.build_model(plan.part, vocab_size, backend).to(plan.device)
        self.optimizers = optimizers(self.model, self.settings)
        self.average = (
            Average(self.model, self.settings.average, 1) if self.settings.average else None
        )
        if self.average:
            self.average.restore()  # takes its memory
        self.bf16 = precision == "bf16"
        if fastest_backend.is_open(plan.resolved, plan.part, plan.device):
            batch = fastest_backend.first_batch(plan.stream, plan.device)
            found = fastest_backend.fastest(lambda: self._loss(batch))
            fastest_backend.prefer(self.model, found[0] if found else "")

    def _timed(self, work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def _loss(self, batch: Batch) -> Loss:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            objective = self.plan.data.objective
            return objective.loss(self.model, forward(objective, self.model, batch), batch)

    def train(self, batch: Batch) -> float:
        """Return the seconds of a forward and backward pass."""
        self.model.train()
        moved = to_device(batch, self.device)
        # A batch without targets is timed, too.
        num_targets = {name: max(1, number) for name, number in moved.num_targets.items()}

        def work() -> None:
            self._loss(moved).mean(num_targets).backward()

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
            return self._timed(lambda: self._loss(moved))


def probe(plan: Plan) -> dict[str, Any]:
    """Return the estimate of time and memory; if memory is too small, `fits` is False.

    It trains on the batch with the most attention and on the one with the most tokens. A system
    without memory may kill the process, so parts of a batch are tried first; a batch that would
    not fit by their figures is not tried.
    """
    settings = plan.settings
    machine.configure_allocator()
    precision, reason = machine.choose_precision(settings.precision, plan.device)
    if settings.deterministic:
        machine.use_deterministic_algorithms(plan.device)
    memory.forget_peak(plan.device)
    now = memory.used(plan.device)[0]
    found = Memory(memory.limit(plan.device), now + plan.state_bytes)
    times, attention = Times(), ""
    if found.state > found.limit:
        found.fits = False
    else:
        try:
            trial = _Trial(plan, precision)
            _measure_memory(trial, found)
            attention = str(getattr(trial.model, "attention_choice", ""))
            if found.fits:
                longest_peak = memory.used(plan.device)[1]
                _measure_time(trial, times)
                found.peak = _peak_of_run(longest_peak, memory.used(plan.device)[1], plan.device)
                found.fits = found.peak <= found.limit
        except (RuntimeError, MemoryError) as error:
            if not memory.is_shortage(error):
                raise
            found.fits = False
    if found.peak is None and found.per_token is not None:
        found.peak = int(found.state + found.per_token * longest_tokens(plan))
    return {
        "precision": f"{precision} ({reason})",
        "attention": attention or None,
        **_time_figures(plan, times),
        **_memory_figures(plan, found),
    }


def _peak_of_run(longest_peak: int, last_peak: int, device: torch.device) -> int:
    """Return the peak of a run, from the peaks after the longest and the timed batches.

    A CPU's heap grows with the variety of batches, ever more slowly: the growth during the timed
    batches is counted twice. On a GPU it does not count.
    """
    return last_peak + (last_peak - longest_peak if device.type == "cpu" else 0)


def longest(plan: Plan) -> list[int]:
    """Return the bins of the first epoch with the most attention and with the most tokens."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    each = sizes[bins.items % len(sizes)].astype(np.float64)
    costs = [np.add.reduceat(x, bins.offsets[:-1]) for x in (each**2, each)]
    return sorted({int(cost.argmax()) for cost in costs})


def longest_tokens(plan: Plan) -> int:
    """Return the most tokens that a batch of the first epoch has."""
    bins, sizes = plan.stream.plan(0), plan.data.examples.sizes
    return max(int(sizes[bins[index] % len(sizes)].sum()) for index in longest(plan))


def _measure_memory(trial: _Trial, found: Memory) -> None:
    """Train on growing parts of a longest batch, then on the longest batches, while they fit."""
    plan, device = trial.plan, trial.device
    bins, examples = plan.stream.plan(0), plan.data.examples
    heavy = [bins[index] for index in longest(plan)]
    # The first example allocates the optimizers' state and the buffers of the backends.
    before = memory.used(device)[0]
    first = examples.batch(heavy[0][:1], 0)
    trial.train(first)
    found.per_token = (memory.used(device)[1] - before) / first.tokens
    trial.update()
    found.state = memory.used(device)[0] + 4 * plan.trained
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
        taken.append((memory.used(device)[1] - found.state) / batch.tokens)
        found.per_token = taken[-1]
    trial.update()


def _measure_time(trial: _Trial, times: Times) -> None:
    plan = trial.plan
    bins, examples = plan.stream.plan(0), plan.data.examples
    for index in np.linspace(0, len(bins) - 1, min(_TIMED_BATCHES, len(bins))).astype(int):
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


def _time_figures(plan: Plan, times: Times) -> dict[str, Any]:
    """Return the seconds of the whole run; None if nothing was timed."""
    names = (
        *("seconds_per_batch", "seconds_per_update", "seconds_per_step", "tokens_per_second"),
        *("training_seconds", "evaluation_seconds", "saving_seconds", "total_seconds", "tokens"),
    )
    settings, steps = plan.settings, plan.settings.known_steps
    counts = ("steps", "evaluations", "checkpoints")
    if not times.batches:
        known = dict(zip(counts, (steps, *_occasions(plan)), strict=True)) if steps else {}
        return dict.fromkeys((*names, *counts)) | known
    batch = float(np.mean(times.batches))
    held_out = int(plan.data.held_out.sizes.sum()) if plan.data.held_out is not None else 0
    cost = Cost(
        batch * settings.batches_per_step + times.update,
        times.held_out_token * held_out,
        _saving_seconds(Path(plan.resolved.recipe.out), plan.checkpoint_bytes),
    )
    if settings.budget_seconds is not None:
        steps = bought_steps(plan, cost, settings.budget_seconds)
    assert steps is not None
    occasions = (steps, *_occasions(plan, steps))
    whole = cost.of(*occasions)
    tokens = float(np.mean(times.tokens)) * settings.batches_per_step
    figures = (batch, times.update, cost.step, tokens / cost.step, *whole, sum(whole))
    return dict(zip((*names, *counts), (*figures, round(steps * tokens), *occasions), strict=True))


class Cost(NamedTuple):
    """Seconds of a step, an evaluation and a checkpoint."""

    step: float
    evaluation: float
    saving: float

    def of(self, *numbers: int) -> tuple[float, float, float]:
        """Return the seconds of so many steps, evaluations and checkpoints."""
        step, evaluation, saving = (n * each for n, each in zip(numbers, self, strict=True))
        return step, evaluation, saving


def bought_steps(plan: Plan, cost: Cost, seconds: float) -> int:
    """Return the number of steps, at least 1, that end in this time with all that is due."""
    fewest, most = 1, max(1, int(seconds / cost.step))
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if sum(cost.of(middle, *_occasions(plan, middle))) <= seconds:
            fewest = middle
        else:
            most = middle - 1
    return fewest


def _occasions(plan: Plan, steps: int | None = None) -> tuple[int, int]:
    """Return the number of evaluations, and of checkpoints if every evaluation is the best.

    `steps` is the number of steps if the recipe has a budget of time.
    """
    settings = plan.settings
    last = steps or settings.steps
    evaluated = set()
    if plan.data.held_out is not None:
        evaluated = {*range(settings.eval_every or last, last, settings.eval_every or last), last}
    saved = {*range(settings.save_every, last, settings.save_every), last}
    if settings.budget_seconds is not None:
        known_by = math.ceil(KNOWN_BY * last)
        if evaluated and min(evaluated) > known_by:
            evaluated.add(known_by)
        if min(evaluated | saved) > known_by:
            saved.add(known_by)
    return len(evaluated), len(evaluated | saved)


def _saving_seconds(directory: Path, size: int) -> float:
    """Return the seconds to write, sync and hash `size` bytes in or above `directory`."""
    directory = user_path(directory).absolute()
    while not directory.is_dir():
        directory = directory.parent
    sample = os.urandom(min(size, _SAMPLE_BYTES))
    where = directory if os.access(directory, os.W_OK) else None
    with tempfile.TemporaryFile(dir=where) as file:
        start = time.perf_counter()
        file.write(sample)
        file.flush()
        os.fsync(file.fileno())
        hashlib.sha256(sample).digest()
        return (time.perf_counter() - start) * size / len(sample)


def _memory_figures(plan: Plan, found: Memory) -> dict[str, Any]:
    share = None if found.peak is None else round(found.peak / found.limit, 4)
    return {
        "longest_batch_tokens": longest_tokens(plan),
        "peak_memory_bytes": found.peak,
        "memory_limit_bytes": found.limit,
        "memory_share": share,
        "fits": found.fits,
        "advice": None if found.fits and (share or 0) <= FULL else advice(plan, found),
    }


def advice(plan: Plan, found: Memory) -> str:
    """Return one line: the memory that is needed, what there is, and the setting that would fit."""
    settings, gib = plan.settings, 2**30
    needed = f"about {found.peak / gib:.1f} GiB" if found.peak else "more memory"
    head = f"the longest batch needs {needed} and there are {found.limit / gib:.1f} GiB; "
    free = FULL * found.limit - found.state
    fitting = int(free / found.per_token) if found.per_token and free > 0 else 0
    most = min(fitting, settings.batch_budget - 1)
    divisors = [n for n in range(1, most + 1) if settings.tokens_per_step % n == 0]
    longest_example = int(plan.data.examples.sizes.max())
    if divisors and divisors[-1] >= longest_example:
        return head + f"set train.tokens_per_batch={divisors[-1]}"
    objective = plan.resolved.recipe.objective[0].config
    if divisors and divisors[-1] >= longest_example // 8 and hasattr(objective, "max_length"):
        return head + (
            f"set objective.max_length={divisors[-1]} and train.tokens_per_batch={divisors[-1]}"
        )
    return (
        f"weights, gradients and the optimizer's state take {found.state / gib:.1f} GiB and there "
        f"are {found.limit / gib:.1f} GiB: take a smaller model or a machine with more memory"
    )
