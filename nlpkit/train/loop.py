"""The training loop: accumulate, clip, step, log, evaluate, save.

It depends on no family and no objective. The gradient of a step is that of (sum of losses) /
(number of targets) over the whole step: all its batches, all processes.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from nlpkit.data.loader import Step
from nlpkit.data.pack import Batch
from nlpkit.errors import DataError, DivergedError, OutOfMemory
from nlpkit.train import best_evaluation
from nlpkit.train.average import Average
from nlpkit.train.log import Log, Metrics
from nlpkit.train.losses import LossSums, reduced
from nlpkit.train.memory import used
from nlpkit.train.optim import set_rates
from nlpkit.train.overfitting import Overfitting
from nlpkit.train.schedule import lr_factor, stable_end
from nlpkit.train.settings import ResolvedTraining
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import State

_DROPOUT = 2  # first word of the seed of dropout masks (0 and 1: see data/loader.py)


@dataclass
class Job:
    """The parts of one training run.

    `training(batch)` returns a `Loss`. `evaluate(progress)` returns the held-out figures, or None
    if it was stopped. `save(state, is_best)` writes a checkpoint of the last step.
    """

    accelerator: Accelerator
    training: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    average: Average | None
    settings: ResolvedTraining
    seed: int
    steps: Callable[[State], Iterator[Step]]
    evaluate: Callable[[float], dict[str, Any] | None] | None
    save: Callable[[State, bool], None]
    log: Log
    metrics: Metrics | None
    stop: StopFlag
    overfitting: Overfitting = field(default_factory=Overfitting)


def train(job: Job, state: State) -> State:
    """Train for `settings.steps` or until early stopping; return the last state.

    Raises:
        Stopped, TryAgain: a signal was received, or the time limit is reached; the last complete
            step is saved.
        DivergedError: a loss, a gradient or a weight is not finite. A step with such a loss or
            gradient is not applied. Such weights, and weights with such a held-out loss, are not
            saved.
    """
    settings = job.settings
    speed = _Speed()
    with (
        job.log.live(settings.steps, state.step),
        # Closed here, because waiting workers would prevent the end of the process.
        closing(_prepared(job, state)) as steps,
    ):
        # If the run was stopped during an evaluation, this evaluation comes first.
        _finish_step(job, state)
        for step in steps:
            if is_over(state, settings):
                break
            record = _take_step(job, state, step)
            if record is None:
                _save_and_stop(job, state)
            else:
                speed.add(record["tokens"] - state.tokens)
                state.step, state.tokens = record["step"], record["tokens"]
                state.position = step.after
                job.overfitting.add(record["loss"])
                _report(job, state, record, speed)
                _finish_step(job, state)
                speed.start()  # after evaluating and saving, which are not measured
    return state


def _prepared(job: Job, state: State) -> Generator[Step, None, None]:
    """Yield the steps to take; if a worker runs out of memory, save the last complete step."""
    try:
        yield from job.steps(state)
    except OutOfMemory as error:
        if not state.step or job.accelerator.num_processes > 1:  # all processes must save together
            raise
        job.save(state, False)
        raise OutOfMemory(f"{error}; {_saved_at(state)}") from error


def _finish_step(job: Job, state: State) -> None:
    """Evaluate and save if they are due after this step."""
    improved = False
    if _evaluation_is_due(job, state):
        progress = state.step / job.settings.steps
        figures = job.evaluate(progress) if job.evaluate else None
        if figures is None:
            _save_and_stop(job, state)
        else:
            improved = _note_evaluation(job, state, figures)
    due = improved or state.step == stable_end(job.settings) or is_over(state, job.settings)
    if state.step and (due or state.step % job.settings.save_every == 0):
        job.save(state, improved)


def _save_and_stop(job: Job, state: State) -> NoReturn:
    """Save the last complete step and end the program."""
    if not state.step:
        raise job.stop.ending("nothing was trained yet")
    job.save(state, False)
    raise job.stop.ending(_saved_at(state))


def _saved_at(state: State) -> str:
    return f"saved at step {state.step}; the same command resumes the run"


def is_over(state: State, settings: ResolvedTraining) -> bool:
    """Return whether all steps are done, or the run stops early."""
    out_of_patience = settings.patience and state.evaluations_without_gain >= settings.patience
    return state.step >= settings.steps or bool(out_of_patience)


def _evaluation_is_due(job: Job, state: State) -> bool:
    if job.evaluate is None or state.evaluated_step == state.step:
        return False
    every = job.settings.eval_every
    return state.step == job.settings.steps or bool(every and state.step % every == 0)


def _take_step(job: Job, state: State, step: Step) -> dict[str, Any] | None:
    """Compute and apply one step; return its record, or None if a signal came before the update."""
    accelerator, settings, number = job.accelerator, job.settings, state.step + 1
    terms = list(step.batches[0].num_targets)
    *counted, tokens, stopping = reduced(
        accelerator,
        [
            *(sum(batch.num_targets[name] for batch in step.batches) for name in terms),
            sum(batch.tokens for batch in step.batches),
            job.stop.raised,
        ],
    )
    if stopping:
        return None
    num_targets = dict(zip(terms, counted, strict=True))
    if not any(counted):
        raise DataError(f"step {number}: no token in the whole step is a target; check the data")
    _seed_dropout(job.seed, number, accelerator.process_index)
    job.training.train()
    progress = state.step / settings.steps
    sums = LossSums()
    for index, batch in enumerate(step.batches):
        last = index == len(step.batches) - 1
        batch.progress = progress
        _backward(job, batch, num_targets, sums, last)
        if job.stop.raised and accelerator.num_processes == 1 and not last:
            _zero_grad(job)
            return None
    norm = float(accelerator.clip_grad_norm_(job.training.parameters(), settings.clip or math.inf))
    sums.reduce(accelerator)
    loss = sums.mean
    if not (math.isfinite(loss) and math.isfinite(norm)):
        wrong = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}"
        raise DivergedError(f"step {number}: {wrong} is not finite; this step was not applied")
    factor = lr_factor(number, settings)
    set_rates(job.optimizers, factor)
    for optimizer in job.optimizers:
        optimizer.step()
    _zero_grad(job)
    if job.average:
        job.average.update(number)
    return {
        "step": number,
        "tokens": state.tokens + int(tokens),
        "targets": int(counted[0]),
        "loss": loss,
        "losses": sums.means,
        "lr": settings.lr * factor,
        "grad_norm": norm,
    }


def _zero_grad(job: Job) -> None:
    for optimizer in job.optimizers:
        optimizer.zero_grad()


def _backward(
    job: Job,
    batch: Batch,
    num_targets: Mapping[str, float],
    sums: LossSums,
    last: bool,
) -> None:
    """Add the gradient and the losses of a batch; gradients are synchronized in the last batch."""
    accelerator = job.accelerator
    batch = to_device(batch, accelerator.device)

    def run() -> None:
        loss = job.training(batch)
        # DistributedDataParallel averages over processes, but `num_targets` is the sum over them.
        accelerator.backward(loss.mean(num_targets, scale=accelerator.num_processes))
        sums.add(loss)

    if last:
        run()
    else:
        with accelerator.no_sync(job.training):
            run()


def _note_evaluation(job: Job, state: State, figures: dict[str, Any]) -> bool:
    """Log the held-out figures and update the best value; return whether it has improved.

    Raises:
        DivergedError: the held-out loss is not finite.
    """
    state.evaluated_step = state.step
    best_by = job.settings.best_by
    value = best_evaluation.value(figures, best_by)
    improved = best_evaluation.is_better(value, state.best_value, best_by)
    state.evaluations_without_gain += 1
    if improved:
        state.best_value, state.best_step = value, state.step
        state.evaluations_without_gain = 0
    if job.metrics:
        job.metrics.write({"step": state.step, "tokens": state.tokens, "held_out": figures})
    parts = "  ".join(f"{name} {value:.4f}" for name, value in figures["losses"].items())
    news = f"loss {figures['loss']:.4f} ({parts})"
    if figures["perplexity"] is not None:
        news += f"  perplexity {figures['perplexity']:.2f}"
    for name, value in figures.get("metrics", {}).items():
        news += f"  {name} {'undefined' if value is None else format(value, '.4f')}"
    if figures["bits_per_character"] is not None:
        news += f"  bits/character {figures['bits_per_character']:.3f}"
    job.log.info(f"held-out at step {state.step}: {news}{'  best' if improved else ''}")
    if warning := job.overfitting.warning(state.step, figures["loss"]):
        job.log.warn(warning)
    if is_over(state, job.settings) and state.step < job.settings.steps:
        job.log.info(
            f"no improvement in {job.settings.patience} evaluations: "
            f"stopping early at step {state.step}"
        )
    if not math.isfinite(figures["loss"]):
        raise DivergedError(
            f"step {state.step}: held-out loss {figures['loss']} is not finite; it is not saved"
        )
    return improved


class _Speed:
    """Tokens per second, smoothed over the last steps."""

    def __init__(self) -> None:
        self.start()
        self.seconds = 0.0
        self.rate = 0.0

    def start(self) -> None:
        """Start to measure a step."""
        self.started = time.perf_counter()

    def add(self, step_tokens: int) -> None:
        """Add a step of `step_tokens` tokens that ends now."""
        self.seconds = time.perf_counter() - self.started
        current = step_tokens / self.seconds
        self.rate = current if not self.rate else 0.9 * self.rate + 0.1 * current


def _report(job: Job, state: State, record: dict[str, Any], speed: _Speed) -> None:
    settings = job.settings
    if job.metrics and (state.step % settings.log_every == 0 or state.step == settings.steps):
        job.metrics.write(
            record
            | {
                "seconds": round(speed.seconds, 4),
                "tokens_per_second": round(speed.rate, 1),
                "memory_bytes": used(job.accelerator.device)[1],
            }
        )
    left = (settings.steps - state.step) * settings.tokens_per_step / max(speed.rate, 1e-9)
    job.log.step(state.step, settings.steps, record["loss"], speed.rate, left)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its arrays as tensors on `device`."""

    def move(array: Any) -> Any:
        tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        return tensor.to(device, non_blocking=True) if isinstance(tensor, Tensor) else tensor

    fields = {name: move(array) for name, array in batch.fields.items()}
    return replace(batch, fields=fields)


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed dropout from (seed, step, process), so that checkpoints need no generator state."""
    word = np.random.SeedSequence([seed, _DROPOUT, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(word[0]))
