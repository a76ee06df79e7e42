"""The training loop: accumulate, clip, step, log, evaluate, save.

It depends on no family and no objective. The gradient of a step is that of (sum of losses) /
(number of targets) over the whole step: all its batches, all processes.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from nlpkit.data.loader import Step
from nlpkit.data.pack import Batch
from nlpkit.errors import DataError, DivergedError, OutOfMemory
from nlpkit.train.average import Average
from nlpkit.train.log import Log, Metrics
from nlpkit.train.losses import LossSums, reduced
from nlpkit.train.optim import set_rates
from nlpkit.train.overfitting import Overfitting
from nlpkit.train.pace import Pace, Tick
from nlpkit.train.reports import Speed, note_evaluation, report
from nlpkit.train.schedule import lr_factor
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
    pace: Pace
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
    speed = Speed()
    with (
        job.log.live(settings.known_steps, state.step, state.progress(settings)),
        # Closed here, because waiting workers would prevent the end of the process.
        closing(_prepared(job, state)) as steps,
    ):
        # If the run was stopped during an evaluation, this evaluation comes first.
        _finish_step(job, state)
        _begin_step(job, speed)
        for step in steps:
            if state.is_over(settings):  # when it was resumed
                break
            taken = _take_step(job, state, step)
            if taken is None:
                _save_and_stop(job, state)
            else:
                record, tick = taken
                speed.add(record["tokens"] - state.tokens)
                state.step, state.tokens = record["step"], record["tokens"]
                state.position = step.after
                job.overfitting.add(record["loss"])
                job.pace.end_step(state, tick)
                report(job, state, record, speed)
                _finish_step(job, state)
                if state.is_over(settings):  # before another step is made
                    break
                _begin_step(job, speed)
    return state


def _begin_step(job: Job, speed: Speed) -> None:
    """Begin to measure a step, after evaluating and saving, which are not part of it."""
    speed.start()
    job.pace.begin_step()


def _prepared(job: Job, state: State) -> Generator[Step, None, None]:
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
        job.pace.begin_evaluation()
        figures = job.evaluate(state.progress(job.settings))
        if figures is None:
            _save_and_stop(job, state)
        else:
            job.pace.end_evaluation(state)
            improved = note_evaluation(job, state, figures)
    due = improved or state.is_stable_end(job.settings) or state.is_over(job.settings)
    if state.step and (due or job.pace.checkpoint_is_due(state)):
        _save(job, state, improved)


def _save(job: Job, state: State, improved: bool) -> None:
    """Save a checkpoint of the last step."""
    job.pace.begin_saving(state)
    job.save(state, improved)
    job.pace.end_saving(state)


def _save_and_stop(job: Job, state: State) -> NoReturn:
    """Save the last complete step and end the program."""
    if not state.step:
        raise job.stop.ending("nothing was trained yet")
    _save(job, state, False)
    raise job.stop.ending(_saved_at(state))


def _saved_at(state: State) -> str:
    return f"saved at step {state.step}; the same command resumes the run"


def _take_step(job: Job, state: State, step: Step) -> tuple[dict[str, Any], Tick] | None:
    """Compute and apply one step; return its record and its tick.

    Returns None if a signal came before the update.
    """
    accelerator, settings, number = job.accelerator, job.settings, state.step + 1
    terms = list(step.batches[0].num_targets)
    # The clock of rank 0 decides.
    own = job.pace.tick(state) if accelerator.is_main_process else Tick()
    *counted, tokens, stopping, elapsed, done, near_end = reduced(
        accelerator,
        [
            *(sum(batch.num_targets[name] for batch in step.own) for name in terms),
            sum(batch.tokens for batch in step.own),
            job.stop.raised,
            *own,
        ],
    )
    if stopping:
        return None
    tick = Tick(elapsed, done, near_end)
    now = job.pace.schedule_step(state, tick)
    if job.pace.decay_begins(state, now):
        _save(job, state, False)
    num_targets = dict(zip(terms, counted, strict=True))
    if not any(counted):
        raise DataError(f"step {number}: no token in the whole step is a target; check the data")
    _seed_dropout(job.seed, number, accelerator)
    job.training.train()
    progress = state.progress(settings)
    sums = LossSums()
    for index, batch in enumerate(step.batches):
        last = index == len(step.batches) - 1
        batch.progress = progress
        _backward(job, batch, num_targets, sums, last, counted=index < len(step.own))
        if job.stop.raised and accelerator.num_processes == 1 and not last:
            _zero_grad(job)
            return None
    norm = float(clip_grad_norm_(job.training.parameters(), settings.clip or math.inf))
    sums.reduce(accelerator)
    loss = sums.mean
    if not (math.isfinite(loss) and math.isfinite(norm)):
        wrong = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}"
        raise DivergedError(f"step {number}: {wrong} is not finite; this step was not applied")
    factor = lr_factor(now, settings)
    set_rates(job.optimizers, factor)
    for optimizer in job.optimizers:
        optimizer.step()
    _zero_grad(job)
    if job.average:
        job.average.update(number)
    record = {
        "step": number,
        "tokens": state.tokens + int(tokens),
        "targets": int(counted[0]),
        "loss": loss,
        "losses": sums.means,
        "lr": settings.lr * factor,
        "grad_norm": norm,
    }
    return record | job.pace.logged(tick), tick


def _zero_grad(job: Job) -> None:
    for optimizer in job.optimizers:
        optimizer.zero_grad()


def _backward(
    job: Job,
    batch: Batch,
    num_targets: Mapping[str, float],
    sums: LossSums,
    last: bool,
    counted: bool,
) -> None:
    """Add the gradient and the losses of a batch; gradients are synchronized in the last batch.

    A batch that is not counted adds 0: it is there because FSDP and DDP wait for all processes.
    """
    accelerator = job.accelerator
    batch = to_device(batch, accelerator.device)
    # DistributedDataParallel averages over processes, but `num_targets` is the sum over them.
    scale = accelerator.num_processes if counted else 0

    def run() -> None:
        loss = job.training(batch)
        accelerator.backward(loss.mean(num_targets, scale=scale))
        sums.add(loss, counted=counted)

    if last:
        run()
    else:
        with accelerator.no_sync(job.training):
            run()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its arrays as tensors on `device`."""

    def move(array: Any) -> Any:
        tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        return tensor.to(device, non_blocking=True) if isinstance(tensor, Tensor) else tensor

    fields = {name: move(array) for name, array in batch.fields.items()}
    return replace(batch, fields=fields)


def _seed_dropout(seed: int, step: int, accelerator: Accelerator) -> None:
    """Seed dropout from (seed, step, process), so that checkpoints need no generator state."""
    entropy = [seed, _DROPOUT, step, accelerator.process_index]
    word = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    # On a CPU nothing else draws; without a GPU, `torch.manual_seed` would write down the stack of
    # calls, which takes longer than a step of a small model.
    on_cpu = accelerator.device.type == "cpu"
    (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(int(word[0]))
