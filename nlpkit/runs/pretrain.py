"""Connects the parts: recipe -> corpus -> tokenizer -> objective -> packer -> model -> loss ->
trainer -> checkpoint. READ FIRST.

`build` makes the parts, `resume` restores a stopped run, `train/loop` trains, `save` saves.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, RunDirectory
from nlpkit.data.loader import Step, Stream, steps
from nlpkit.data.store import Callbacks
from nlpkit.errors import DivergedError, FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved, flatten
from nlpkit.recipe.places import dotted, value_at
from nlpkit.runs import (
    build,
    checks,
    data_files,
    fastest_precision,
    fit_memory,
    model_card,
    planned,
)
from nlpkit.runs.announce import announce, conclude
from nlpkit.runs.model_part import model_part
from nlpkit.runs.parts import token_characters
from nlpkit.runs.resume import begin, named_checkpoint, restore
from nlpkit.runs.run import Run, Training, from_first
from nlpkit.runs.save import rehearse, save
from nlpkit.train import machine, recompute, spinning
from nlpkit.train.average import Average
from nlpkit.train.held_out import HeldOut
from nlpkit.train.log import Log, Metrics
from nlpkit.train.loop import Job, train
from nlpkit.train.optim import optimizers
from nlpkit.train.processes import is_sharded, layers, unknown_to_accelerate, wrap
from nlpkit.train.signals import StopFlag
from nlpkit.train.state import Pace, State
from nlpkit.train.trackers import TrackedRun, Trackers


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

    Raises:
        Stopped: a signal was received; the run is saved, and the same command resumes it.
        DivergedError: the loss is not finite.
    """
    accelerator = make_accelerator(resolved, device, log)
    checks.check_optimizer(resolved, is_sharded(accelerator.num_processes))
    with stop.abortable():
        run = prepare(resolved, directory, accelerator, log, stop, named_checkpoint(resume))
    state, resumed = restore(run, resume)
    settings = run.settings
    announce(run, state)
    budget = settings.batch_budget
    held_out = None
    if run.data.held_out is not None:
        held_out = HeldOut(run.data.held_out, budget, token_characters(run.data.tokenizer))

    def evaluate(progress: float) -> dict[str, Any] | None:
        assert held_out is not None
        with run.averaged():
            return held_out.evaluate(run.training, accelerator, stop, log.evaluating, progress)

    def stream(state: State) -> Iterator[Step]:
        known = settings.known_steps
        source = Stream(
            run.data.examples,
            budget=budget,
            batches_per_step=settings.batches_per_step,
            start=state.position,
            first_step=state.step,
            total_steps=known,
            progress=None if known else lambda: state.progress(settings),
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
        count = sys.maxsize if known is None else known - state.step
        for index, step in enumerate(steps(source, count, settings.workers)):
            # The backend is chosen in the first step. A family may have no attention.
            if index == 1 and (choice := getattr(run.unwrapped.model, "attention_choice", "")):
                log.info(f"attention: {choice}")
            yield step

    is_main = accelerator.is_main_process
    pace = _pace(run, state)
    if is_main and state.step == 0:
        rehearse(run)
    begin(run, resumed, state)
    if is_main:
        data_files.write(directory.path, *run.data.inputs, run.data.cache, stop.check)
    trackers = _trackers(run, state) if is_main else None
    job = Job(
        accelerator=accelerator,
        training=run.training,
        optimizers=run.optimizers,
        settings=settings,
        seed=resolved.recipe.seed,
        steps=stream,
        evaluate=evaluate if held_out else None,
        save=lambda state, best: save(run, state, best),
        log=log,
        metrics=_metrics(run, state, trackers) if trackers else None,
        stop=stop,
        pace=pace,
        after_update=[run.average.update] if run.average else [],
    )
    if is_main and directory.status().get("budget_seconds") != settings.budget_seconds:
        directory.set_status(budget_seconds=settings.budget_seconds)
    try:
        state = train(job, state)
    except DivergedError as error:
        last = files.read_pointer(directory.path, "latest")
        where = f"the last checkpoint is {last}" if last else "no checkpoint was saved yet"
        raise DivergedError(f"{error}; {where}; try a lower train.lr or train.clip") from error
    finally:
        if job.metrics and trackers:
            job.metrics.close()
            trackers.finish()
    checkpoint = files.read_pointer(directory.path, "latest")
    assert checkpoint is not None
    if is_main:
        directory.set_status(finished=True, finite=True, step=state.step)  # checked by `save`
    conclude(run, state, held_out, pace)
    if is_main:
        _hand_over(run)
    return checkpoint


def _pace(run: Run, state: State) -> Pace:
    """Return the pace of the run: a clock if it has a budget of time."""
    if run.settings.budget_seconds is None:
        return Pace(run.settings)
    from nlpkit.train import budget, snapshot

    snapshot.import_early()
    state.times.follow(run.settings)
    lost = budget.Recorded()
    if run.accelerator.is_main_process:
        kept = run.directory.status().get("budget_seconds") == run.settings.budget_seconds
        lost = budget.lost_ticks(run.directory.path / METRICS, state, kept, run.log.info)
    return budget.Clock(run.settings, run.data.held_out is not None, state, lost)


def _hand_over(run: Run) -> None:
    """Write the model cards, and log how to upload the model. The run is finished without them."""
    model = run.unwrapped.model
    parameters = sum(each.numel() for each in model.parameters())
    try:
        command = model_card.write_for_run(run.directory.path, parameters, run.data.objective)
    except FileError as error:
        run.log.warn(f"no model card: {error}")
        return
    run.log.info(
        f"to share the model, fill in the licence in its {model_card.CARD}, then: {command}"
    )


def _metrics(run: Run, state: State, trackers: Trackers) -> Metrics:
    path = run.directory.path / METRICS
    return Metrics(path, state.step, state.evaluated_step, trackers.log, run.log.warn)


def _trackers(run: Run, state: State) -> Trackers:
    """Start and return the trackers of `train.trackers`, for a resumed run with the same run id."""
    names = run.settings.trackers
    run_id = run.directory.status().get("tracked_as") if state.step else None
    if names and run_id is None:
        run_id = secrets.token_hex(8)
        run.directory.set_status(tracked_as=run_id)
    dump = run.resolved.dump()
    values = {dotted(path): value_at(dump, path) for path in flatten(dump)}
    settings = {
        key: json.dumps(value) if isinstance(value, list | dict) else value
        for key, value in values.items()
    }
    name, path = run.resolved.recipe.name, run.directory.path
    tracked = TrackedRun(name, path, str(run_id), state.step, settings)
    return Trackers(names, tracked, run.log.warn)


def make_accelerator(resolved: Resolved, device: str, log: Log) -> Accelerator:
    """Return the accelerator; autocast is of `Training`, since the precision is chosen later.

    Raises:
        UsageError: the device is not available.
    """
    target = machine.find_device(device)
    if device not in ("auto", "cpu"):
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    machine.configure_allocator()
    if target.type == "cpu":
        spinning.start(log.info)
    # On a CPU, several processes form a group only with `cpu=True`.
    on_cpu = target.type == "cpu"
    processes = PartialState(cpu=on_cpu)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes.num_processes:
        raise UsageError(
            f"{launched} processes were launched, but {processes.num_processes} form a group; "
            "check the launcher's options and --device"
        )
    if not processes.is_main_process:
        log.verbosity = -1  # only rank 0 logs
    with unknown_to_accelerate():
        accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")
    if resolved.recipe.train.deterministic:
        machine.use_deterministic_algorithms(accelerator.device)
    return accelerator


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
    settings = resolved.recipe.train
    callbacks = Callbacks(log.info, log.warn, log.tokenizing, log.reading, stop.check)
    part = model_part(resolved, directory.path, resumed, log.info)
    for line in part.warnings:
        log.warn(f"{part.source}: {line}")
    checks.check_backend(resolved, part, accelerator.device)
    with accelerator.main_process_first():  # the other ranks read the text from the cache
        data = build.build_data(resolved, part, directory.path, callbacks)
    device, processes = accelerator.device, PartialState()
    guess = from_first(processes, lambda: fastest_precision.of_start(resolved, directory, device))
    fitted = fit_memory.of_run(
        resolved, directory, accelerator, part, data, resumed, guess.name, log.info
    )
    plan = planned.plan(resolved, fitted, part, data, device)
    torch.manual_seed(resolved.recipe.seed)
    model = build.build_model(part, data.vocab_size, resolved.recipe.attention.backend)
    recompute.apply(model, plan.settings)
    if settings.z_loss:  # the objective predicts tokens: `checks.check_training`
        model.z_loss = settings.z_loss  # type: ignore[assignment]
    unwrapped = Training(model, data.objective)
    precision = from_first(
        processes, lambda: fastest_precision.settled(guess, unwrapped, plan.stream)
    )
    log.info(f"precision: {precision.name} ({precision.reason})")
    unwrapped.precision = precision.name
    training_settings = plan.settings.model_copy(update={"precision": precision.name})
    if is_sharded(accelerator.num_processes):
        log.info(f"FSDP: shards of the parameters, {number_of(len(layers(model)), 'layers')}")
    batch = data.examples.batch(np.arange(1), 0)
    training, made = wrap(
        accelerator, unwrapped, batch, lambda: optimizers(model, training_settings)
    )
    average = None
    if (section := training_settings.average) is not None:
        average = Average(training, section, training_settings.steps)
    return Run(
        *(resolved, training_settings, directory, part, data, accelerator),
        *(training, made, average, log),
    )
