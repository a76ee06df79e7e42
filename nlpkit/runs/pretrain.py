"""Trains one recipe, from top to bottom. READ FIRST.

`prepare`: recipe -> data -> model -> optimizers. `pretrain`: a stopped run is restored, `train`
trains, `save` saves. What a recipe may ask beside them is imported where it is asked for.
"""

import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator
from torch import get_num_threads, nn
from torch.optim import Optimizer

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, RunDirectory
from nlpkit.data.loader import Progress, Step, steps
from nlpkit.data.store import Callbacks
from nlpkit.errors import DivergedError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.recipe import Resolved
from nlpkit.recipe.places import dotted, flatten
from nlpkit.runs import build, checks, save
from nlpkit.runs.announce import announce, conclude
from nlpkit.runs.fastest_precision import keep_or_probe, time_batches
from nlpkit.runs.run import FITTED, Data, Run, Training, from_first
from nlpkit.train.held_out import HeldOut
from nlpkit.train.log import Log, Metrics
from nlpkit.train.loop import Job, train
from nlpkit.train.machine import is_wrapped, make_accelerator
from nlpkit.train.optim import optimizers
from nlpkit.train.schedule import ResolvedTraining, make_stream, resolve_steps
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import Pace, State

if TYPE_CHECKING:
    from nlpkit.train.trackers import Trackers


def pretrain(
    resolved: Resolved,
    directory: RunDirectory,
    *,
    device: str,
    resume: str,
    log: Log,
    stop: StopFlag,
) -> Path:
    """Start or resume training; return the directory of the final checkpoint.

    Args:
        resume: `auto` (the newest checkpoint, if there is one), `never`, or a checkpoint.

    Raises:
        Stopped: a signal was received; the run is saved, and the same command resumes it.
        DivergedError: the loss is not finite.
    """
    with stop.abortable():  # also while it waits for other processes
        accelerator = make_accelerator(resolved.recipe.train, device, log)
        named = None if resume in ("auto", "never") else Path(resume)
        run = prepare(resolved, directory, accelerator, log, stop, named)
    checkpoint, state = None, State()
    if named or from_first(lambda: files.list_directories(directory.path)):
        from nlpkit.runs import resume as resuming

        checkpoint, state = resuming.restore(run, named)
    if run.data.examples.words is not None:
        from nlpkit.runs import milestones

        milestones.begin(run, state)
    announce(run, state)
    pace = _pace(run, state)
    if accelerator.is_main_process and state.step == 0:
        save.rehearse(run)
    save.begin(run, checkpoint, state)  # before, nothing is written but the cache
    if accelerator.is_main_process:
        build.record_files(directory.path, run.data.inputs, stop.check)
    held_out = None
    if run.data.held_out is not None:
        held_out = HeldOut(run.data.held_out, run.settings.batch_budget, run.data.tokenizer)
    metrics = None
    if accelerator.is_main_process:
        trackers = _trackers(run, state) if run.settings.trackers else None
        path = directory.path / METRICS
        metrics = Metrics(path, state.step, state.evaluated_step, trackers, log.warn)
    try:
        state = train(_job(run, held_out, metrics, pace, stop), state)
    except DivergedError as error:
        raise DivergedError(f"{error}; {save.describe_last(directory.path)}") from error
    finally:
        if metrics:
            metrics.close()
    conclude(run, state, pace)
    if accelerator.is_main_process:
        directory.set_status(finished=True, step=state.step)
    final = files.read_pointer(directory.path, "latest")
    assert final is not None
    return final


def prepare(
    resolved: Resolved,
    directory: RunDirectory,
    accelerator: Accelerator,
    log: Log,
    stop: StopFlag,
    resumed: Path | None = None,
) -> Run:
    """Return the run with tokenized data and with the model on the device.

    `resumed` is the checkpoint that `--resume` names, or None.
    """
    recipe, device = resolved.recipe, accelerator.device
    if is_wrapped(accelerator.num_processes):
        checks.check_optimizer(resolved, accelerator.num_processes)
    part = build.model_part(resolved, directory.path, resumed, log.info)
    log.warn_all(f"{part.source}: {line}" for line in part.warnings)
    if recipe.attention.backend != "auto":
        checks.check_backend(resolved, part, device)
    callbacks = Callbacks(log.info, log.warn, log.tokenizing, log.reading, stop.check)
    with accelerator.main_process_first():  # the other ranks read the text from the cache
        data = build.build_data(resolved, part, directory.path, callbacks)
    if device.type == "cpu" and get_num_threads() > 1:  # not before: own workers tokenise the text
        from nlpkit.train import spinning

        spinning.start(log.info)
    if part.frozen:
        from nlpkit.runs import frozen

        frozen.attach(part.frozen, data.objective, data.tokenizer, str(device), log)
    settings, fitted, status = recipe.train, None, directory.status()
    if settings.memory or resumed or status.get(FITTED):
        from nlpkit.runs import fit_memory

        status = fit_memory.find_status(directory, resumed)
        fitted = fit_memory.find(resolved, directory, accelerator, part, data, status, log.info)
        settings = fitted.settings(settings) if fitted else settings
    stream = make_stream(settings)(data.examples)
    settings = resolve_steps(settings, stream)
    if recipe.eval.pairs:
        from nlpkit.runs import judged

        judged.attach(resolved, part, data, settings, stream, log, stop.check)
    module = build.build_training(resolved, part, data, settings)
    precision = from_first(
        lambda: time_batches(keep_or_probe(resolved, status, device), module, stream)
    )
    log.info(f"precision: {precision.name} ({precision.reason})")
    module.precision = precision.name
    settings = settings.model_copy(update={"precision": precision.name})
    training, made = _place(module, accelerator, settings, data, log)
    run = Run(resolved, settings, directory, part, data, accelerator, training, made, log, fitted)
    if settings.average is not None:
        from nlpkit.train.average import Average

        run.average = Average(training, settings.average, settings.steps)
        run.after_update.append(run.average.update)
    return run


def _place(
    module: Training, accelerator: Accelerator, settings: ResolvedTraining, data: Data, log: Log
) -> tuple[nn.Module, list[Optimizer]]:
    """Return the module on its device, wrapped for several processes, and its optimizers."""

    def make() -> list[Optimizer]:  # when the parameters are where they stay
        return optimizers(module.model, settings)

    if not is_wrapped(accelerator.num_processes):
        return module.to(accelerator.device), make()
    from nlpkit.train import processes

    batch = data.examples.batch(np.arange(1), 0)
    return processes.wrap(accelerator, module, batch, make, log.info)


def _job(
    run: Run, held_out: HeldOut | None, metrics: Metrics | None, pace: Pace, stop: StopFlag
) -> Job:
    def evaluate(progress: float) -> JsonObject | None:
        assert held_out is not None
        with run.averaged():
            return held_out.evaluate(
                run.training, run.accelerator, stop, run.log.evaluating, progress
            )

    return Job(
        accelerator=run.accelerator,
        training=run.training,
        optimizers=run.optimizers,
        settings=run.settings,
        seed=run.resolved.recipe.seed,
        steps=lambda state: _steps(run, state),
        evaluate=evaluate if held_out else None,
        save=lambda state, best: save.save(run, state, best),
        log=run.log,
        metrics=metrics,
        stop=stop,
        pace=pace,
        after_update=run.after_update,
    )


def _steps(run: Run, state: State) -> Iterator[Step]:
    """Yield the steps after `state`: endless with a budget, else up to `train.steps`."""
    settings, known = run.settings, run.settings.known_steps
    source = make_stream(settings)(
        run.data.examples,
        start=state.position,
        progress=Progress(state.step, known, None if known else lambda: state.progress(settings)),
        rank=run.accelerator.process_index,
        world_size=run.accelerator.num_processes,
    )
    count = sys.maxsize if known is None else known - state.step
    made = steps(source, count, settings.workers)
    if settings.phases or run.resolved.recipe.objective[0].lengths:
        from nlpkit.runs import phased

        made = phased.follow(run, state, source, count)
    for index, step in enumerate(made):
        # The backend is chosen in the first step. A family may have no attention.
        if index == 1 and (choice := getattr(run.unwrapped.model, "attention_choice", "")):
            run.log.info(f"attention: {choice}")
        yield step


def _pace(run: Run, state: State) -> Pace:
    """Return the pace of the run: a clock if it has a budget of time."""
    if run.settings.budget_seconds is None:
        return Pace(run.settings)
    from nlpkit.train import budget, shards

    if run.settings.budget_clock == "cpu" and run.accelerator.device.type != "cpu":
        raise UsageError("train.budget_clock: cpu counts no time of a GPU; set it to training")
    shards.import_early()
    state.times.follow(run.settings)
    lost = budget.Recorded()
    if run.accelerator.is_main_process:
        kept = run.directory.status().get("budget_seconds") == run.settings.budget_seconds
        lost = budget.lost_ticks(run.directory.path / METRICS, state, kept, run.log.info)
    return budget.Clock(run.settings, run.data.held_out is not None, state, lost)


def _trackers(run: Run, state: State) -> "Trackers":
    """Start and return the trackers of `train.trackers`, for a resumed run with the same run id."""
    from nlpkit.train.trackers import TrackedRun, Trackers

    run_id = run.directory.status().get("tracked_as") if state.step else None
    if run_id is None:
        run_id = secrets.token_hex(8)
        run.directory.set_status(tracked_as=run_id)
    settings = {
        dotted(path): json.dumps(value) if isinstance(value, list | dict) else value
        for path, value in flatten(run.resolved.dump())
    }
    name, path = run.resolved.recipe.name, run.directory.path
    tracked = TrackedRun(name, path, str(run_id), state.step, settings)
    return Trackers(run.settings.trackers, tracked, run.log.warn)
