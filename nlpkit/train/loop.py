"""The training loop: accumulate, clip, step, log, evaluate, save.

It depends on no family and no objective. The gradient of a step is that of (sum of losses) /
(number of targets) over the whole step: all its batches, all processes.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.utils import clip_grad_norm_

from nlpkit.data.loader import Step
from nlpkit.errors import DataError, DivergedError, OutOfMemory
from nlpkit.json_types import JsonObject
from nlpkit.train import machine
from nlpkit.train.held_out import Overfitting, in_words
from nlpkit.train.log import Log, Metrics
from nlpkit.train.losses import LossSums, reduced
from nlpkit.train.machine import to_device
from nlpkit.train.optim import set_rates
from nlpkit.train.schedule import ResolvedTraining, lr_factor
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import Pace, State, Tick

_DROPOUT = 2  # first word of the seed of dropout masks (0 and 1: see data/loader.py)


@dataclass
class Job:
    """The parts of one training run.

    `training(batch)` returns a `Loss`. `evaluate(progress)` returns the held-out figures, or None
    if it was stopped. `save(state, is_best)` writes a checkpoint of the last step. Each function of
    `after_update` is called with the state after a step when its update is applied.
    """

    accelerator: Accelerator
    training: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    settings: ResolvedTraining
    seed: int
    steps: Callable[[State], Iterator[Step]]
    evaluate: Callable[[float], JsonObject | None] | None
    save: Callable[[State, bool], None]
    log: Log
    metrics: Metrics | None
    stop: StopFlag
    pace: Pace
    after_update: Sequence[Callable[[State], None]] = ()
    overfitting: Overfitting = field(default_factory=Overfitting)


def train(job: Job, state: State) -> State:
    """Train for `settings.steps`, the budget, or until early stopping; return the last state.

    Raises:
        Stopped, TryAgain: a signal was received, or the time limit is reached; the last complete
            step is saved.
        DivergedError: a loss, a gradient or a weight is not finite. A step with such a loss or
            gradient is not applied. Such weights, and weights with such a held-out loss, are not
            saved.
    """
    settings = job.settings
    rate = 0.0  # tokens per second, smoothed over the last steps
    with (
        job.log.live(settings.known_steps, state.step, state.progress(settings)),
        # Closed here, because waiting workers would prevent the end of the process.
        closing(_steps(job, state)) as steps,
    ):
        # If the run was stopped during an evaluation, this evaluation comes first.
        _finish_step(job, state)
        while not state.is_over(settings):
            started = job.pace.begin_step()
            step = next(steps)
            taken = _take_step(job, state, step)
            if taken is None:
                _save_and_stop(job, state)
            record, tick = taken
            seconds = time.perf_counter() - started
            speed = (record["tokens"] - state.tokens) / seconds
            rate = 0.9 * rate + 0.1 * speed if rate else speed
            state.step, state.tokens = record["step"], record["tokens"]
            state.position, state.words = step.after, record.get("words", 0)
            job.overfitting.losses.append(record["loss"])
            for update in job.after_update:
                update(state)
            job.pace.end_step(state, tick)
            _report(job, state, record, seconds, rate)
            _finish_step(job, state)
    return state


def _steps(job: Job, state: State) -> Generator[Step, None, None]:
    """Yield the steps to take; if a worker runs out of memory, save the last complete step."""
    try:
        yield from job.steps(state)
    except OutOfMemory as error:
        if not state.step or job.accelerator.num_processes > 1:  # all processes must save together
            raise
        _save(job, state, False)
        raise OutOfMemory(f"{error}; {_saved_at(state)}") from error


def _finish_step(job: Job, state: State) -> None:
    """Evaluate and save if they are due after this step."""
    improved = False
    if job.evaluate and state.evaluated_step != state.step and job.pace.evaluation_is_due(state):
        with job.pace.evaluating(state):
            figures = job.evaluate(state.progress(job.settings))
        if figures is None:
            _save_and_stop(job, state)
        improved = _note_evaluation(job, state, figures)
    due = improved or state.is_stable_end(job.settings) or state.is_over(job.settings)
    if state.step and (due or job.pace.checkpoint_is_due(state)):
        _save(job, state, improved)


def _save(job: Job, state: State, improved: bool) -> None:
    with job.pace.saving(state):
        job.save(state, improved)


def _save_and_stop(job: Job, state: State) -> NoReturn:
    if not state.step:
        raise job.stop.ending("nothing was trained yet")
    _save(job, state, False)
    raise job.stop.ending(_saved_at(state))


def _saved_at(state: State) -> str:
    return f"saved at step {state.step}; the same command resumes the run"


def _take_step(job: Job, state: State, step: Step) -> tuple[JsonObject, Tick] | None:
    """Compute and apply a step; return its record and tick, None if a signal came before."""
    settings, number = job.settings, state.step + 1
    num_targets, tokens, words, stopping, tick = _agree(job, state, step)
    if stopping:
        return None
    place = job.pace.schedule_step(state, tick)
    if job.pace.decay_begins(state, place):
        _save(job, state, False)
    if not any(num_targets.values()) and tokens > state.tokens + 256:  # a few may have none
        raise DataError(f"step {number}: no token in the whole step is a target; check the data")
    sums = _add_gradients(job, state, step, num_targets)
    if sums is None:
        return None
    norm = float(clip_grad_norm_(job.training.parameters(), settings.clip or math.inf))
    sums.reduce(job.accelerator)
    loss = sums.mean
    if not (math.isfinite(loss) and math.isfinite(norm)):
        wrong = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}"
        raise DivergedError(f"step {number}: {wrong} is not finite; this step was not applied")
    factor = lr_factor(place, settings)
    set_rates(job.optimizers, factor)
    for optimizer in job.optimizers:
        optimizer.step()
    _zero_grad(job)
    record = {
        "step": number,
        "tokens": state.tokens + tokens,
        "targets": int(next(iter(num_targets.values()))),
        "loss": loss,
        "losses": sums.means,
        "lr": settings.lr * factor,
        "grad_norm": norm,
    } | ({"words": state.words + words} if words or state.words else {})
    return record | step.notes | job.pace.logged(tick), tick


def _agree(job: Job, state: State, step: Step) -> tuple[dict[str, float], int, int, bool, Tick]:
    """Return what all processes agree on: targets by term, tokens, words, whether to stop, tick."""
    terms = list(step.batches[0].num_targets)
    own = job.pace.tick(state) if job.accelerator.is_main_process else Tick()
    *counted, tokens, words, stopping, elapsed, done, near_end = reduced(
        job.accelerator,
        [
            *(sum(batch.num_targets[name] for batch in step.own) for name in terms),
            sum(batch.tokens for batch in step.own),
            sum(batch.words for batch in step.own),
            job.stop.raised,
            *own,
        ],
    )
    tick = Tick(elapsed, done, near_end)
    targets = dict(zip(terms, counted, strict=True))
    return targets, int(tokens), int(words), bool(stopping), tick


def _add_gradients(
    job: Job, state: State, step: Step, num_targets: Mapping[str, float]
) -> LossSums | None:
    """Add the gradients of all batches of a step; return its losses, or None if it is stopped.

    Gradients of processes are synchronized in the last batch. A batch that is not of `step.own`
    adds 0: it is there because FSDP and DDP wait for all processes.
    """
    accelerator, sums = job.accelerator, LossSums()
    _seed_dropout(job.seed, state.step + 1, accelerator)
    job.training.train()
    for index, batch in enumerate(step.batches):
        counted, last = index < len(step.own), index == len(step.batches) - 1
        batch.progress = state.progress(job.settings)
        moved = to_device(batch, accelerator.device)
        # DistributedDataParallel averages over processes, but `num_targets` is the sum over them.
        scale = accelerator.num_processes if counted else 0
        with nullcontext() if last else accelerator.no_sync(job.training):
            loss = job.training(moved)
            accelerator.backward(loss.mean(num_targets, scale=scale))
            sums.add(loss, counted=counted)
        del loss, moved  # before the memory of the next batch is taken
        if job.stop.raised and accelerator.num_processes == 1 and not last:
            _zero_grad(job)
            return None
    return sums


def _zero_grad(job: Job) -> None:
    for optimizer in job.optimizers:
        optimizer.zero_grad()


def _seed_dropout(seed: int, step: int, accelerator: Accelerator) -> None:
    """Seed dropout from (seed, step, process), so that checkpoints need no generator state."""
    entropy = [seed, _DROPOUT, step, accelerator.process_index]
    word = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    # On a CPU nothing else draws; without a GPU, `torch.manual_seed` would write down the stack of
    # calls, which takes longer than a step of a small model.
    on_cpu = accelerator.device.type == "cpu"
    (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(int(word[0]))


def _report(job: Job, state: State, record: JsonObject, seconds: float, rate: float) -> None:
    """Write the record of a step to metrics.jsonl, and show how far the run is."""
    settings, progress = job.settings, state.progress(job.settings)
    if job.metrics and (state.step % settings.log_every == 0 or progress == 1):
        measured = {
            "seconds": round(seconds, 4),
            "tokens_per_second": round(rate, 1),
            "memory_bytes": machine.used_memory(job.accelerator.device)[1],
        }
        job.metrics.write(record | job.pace.spent() | measured)
    left = job.pace.seconds_left(state, rate)
    job.log.step(state.step, settings.known_steps, progress, record["loss"], rate, left)


def _note_evaluation(job: Job, state: State, figures: JsonObject) -> bool:
    """Log the held-out figures and update the best value; return whether it has improved."""
    if not math.isfinite(figures["loss"]):
        raise DivergedError(
            f"step {state.step}: held-out loss {figures['loss']} is not finite; it is not saved"
        )
    improved = state.add_evaluation(figures, job.settings.best_by)
    if job.metrics:
        record = {"step": state.step, "tokens": state.tokens, "held_out": figures}
        job.metrics.write(record | job.pace.spent())
    best = "  best" if improved else ""
    job.log.info(f"held-out at step {state.step}: {in_words(figures)}{best}")
    if warning := job.overfitting.warning(state.step, figures["loss"]):
        job.log.warn(warning)
    if state.is_over(job.settings) and state.progress(job.settings) < 1:
        what = f"no improvement in {job.settings.patience} evaluations: stopping early"
        job.log.info(f"{what} at step {state.step}")
    return improved
