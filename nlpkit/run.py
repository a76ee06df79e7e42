"""Joins the parts: recipe -> corpus -> tokenizer -> objective -> packer -> model -> loss -> trainer
-> checkpoint. READ FIRST.

`build` makes the parts, `train/loop` drives them; this file puts a run together, starts it where
it stopped, and writes its checkpoints.
"""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from nlpkit import __version__, build
from nlpkit.data.loader import Step, Stream, steps
from nlpkit.data.pack import Batch
from nlpkit.data.store import Watch
from nlpkit.errors import DivergedError, FileError, UsageError
from nlpkit.models import _hf
from nlpkit.objectives._contract import Loss
from nlpkit.recipe import Resolved
from nlpkit.rundir import METRICS, RECIPE, RunDirectory
from nlpkit.train import checkpoint, machine, snapshot
from nlpkit.train.evaluate import HeldOut
from nlpkit.train.log import Log, Metrics
from nlpkit.train.loop import Job, State, train
from nlpkit.train.optim import adamw
from nlpkit.train.signals import StopFlag


class Training(nn.Module):
    """Model and objective as one module, so that what wraps it (DDP, FSDP, autocast) sees the
    loss."""

    def __init__(self, model: nn.Module, objective: Any):
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch) -> Loss:
        return self.objective.loss(self.model, batch.fields, batch.lengths)


@dataclass
class Run:
    """A run with its parts, ready to train."""

    resolved: Resolved
    directory: RunDirectory
    part: build.ModelPart
    data: build.Data
    accelerator: Accelerator
    training: nn.Module
    optimizer: Any
    log: Log
    stop: StopFlag

    @property
    def bare(self) -> Training:
        """The training module without what accelerate wrapped around it."""
        return self.accelerator.unwrap_model(self.training)


def pretrain(
    resolved: Resolved,
    directory: RunDirectory,
    *,
    device: str,
    resume: str,
    log: Log,
    stop: StopFlag,
) -> Path:
    """Train the recipe, or go on with it; return the final checkpoint's directory.

    Raises:
        Stopped: a signal came; the run is saved and goes on next time.
        DivergedError: the loss is not finite; the last checkpoint is named.
    """
    accelerator = make_accelerator(resolved, directory, device, log)
    run = prepare(resolved, directory, accelerator, log, stop)
    settings = resolved.recipe.train
    state = restore(run, resume)
    announce(run, state)
    budget = settings.batch_budget
    held_out = None
    if run.data.held_out is not None:
        held_out = HeldOut(run.data.held_out, budget, run.data.tokenizer.token_characters())

    def stream(state: State) -> Iterator[Step]:
        source = Stream(
            run.data.examples,
            budget=budget,
            batches_per_step=settings.batches_per_step,
            start=state.position,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
        return steps(source, settings.steps - state.step, settings.workers)

    is_main = accelerator.is_main_process
    job = Job(
        accelerator=accelerator,
        training=run.training,
        optimizer=run.optimizer,
        settings=settings,
        seed=resolved.recipe.seed,
        steps=stream,
        evaluate=(
            (lambda: held_out.evaluate(run.training, accelerator, stop)) if held_out else None
        ),
        save=lambda state, best: save(run, state, best),
        log=log,
        metrics=_metrics(directory, state) if is_main else None,
        stop=stop,
    )
    try:
        state = train(job, state)
    except DivergedError as error:
        last = checkpoint.pointed(directory.path, "latest")
        where = f"the last good state is {last}" if last else "nothing was saved yet"
        raise DivergedError(f"{error}; {where}; try a lower train.lr or train.clip") from error
    finally:
        if job.metrics:
            job.metrics.close()
    place = checkpoint.pointed(directory.path, "latest")
    assert place is not None
    if is_main:
        directory.set_status(finished=True, step=state.step)
    conclude(run, state, held_out)
    return place


def _metrics(directory: RunDirectory, state: State) -> Metrics:
    return Metrics(directory.path / METRICS, state.step, state.evaluated_step)


def make_accelerator(
    resolved: Resolved, directory: RunDirectory, device: str, log: Log
) -> Accelerator:
    """Return the accelerator in the run's precision, which is decided once, at its first start."""
    if device not in ("auto", "cpu"):
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    machine.tune_memory()
    # Without an accelerator accelerate must be told, or several processes would not find together.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    kind = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()
    assert kind is not None
    decided = directory.status().get("precision")
    if decided is not None and resolved.recipe.train.precision in ("auto", decided):
        precision, reason = decided, "as this run began"
    else:
        precision, reason = machine.choose_precision(resolved.recipe.train.precision, kind)
    accelerator = Accelerator(
        cpu=on_cpu, mixed_precision="no" if precision == "fp32" else precision
    )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise UsageError(
            f"{launched} processes were launched and {accelerator.num_processes} found together; "
            "check the launcher's options and --device"
        )
    if accelerator.is_main_process:
        directory.set_status(precision=precision)
    else:
        log.verbosity = -1  # one voice is enough
    accelerator.wait_for_everyone()
    log.say(f"precision: {precision} ({reason})")
    if resolved.recipe.train.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=accelerator.device.type != "cpu")
        # It would write every new tensor twice.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return accelerator


def prepare(
    resolved: Resolved,
    directory: RunDirectory,
    accelerator: Accelerator,
    log: Log,
    stop: StopFlag,
) -> Run:
    """Return the run with its data tokenised and its model built and placed on the device."""
    settings = resolved.recipe.train
    if settings.batches_per_step % accelerator.num_processes:
        raise UsageError(
            f"train.tokens_per_step: {settings.tokens_per_step} in batches of "
            f"{settings.batch_budget} makes {settings.batches_per_step} a step, which "
            f"{accelerator.num_processes} processes cannot share evenly; set "
            "train.tokens_per_batch so that they can"
        )
    watch = Watch(note=log.say, should_stop=stop.check)
    part = build.model_part(resolved)
    with accelerator.main_process_first():  # the others find it in the cache
        data = build.build_data(resolved, part, directory.path, watch)
    torch.manual_seed(resolved.recipe.seed)
    model = build.build_model(part, data.tokenizer.vocab_size, resolved.recipe.attention.backend)
    training: nn.Module = Training(model, data.objective)
    training, optimizer = accelerator.prepare(training, adamw(training, settings))
    return Run(
        resolved, directory, part, data, accelerator, training, optimizer.optimizer, log, stop
    )


def restore(run: Run, resume: str) -> State:
    """Return the state to go on from: that of the newest good checkpoint, or a new one."""
    path = run.directory.path
    if resume == "auto":
        found = checkpoint.newest_good(path, run.log.warn)
    elif resume == "never":
        if checkpoint.found(path):
            raise UsageError(f"{path} holds checkpoints of a run; give --out another directory")
        found = None
    else:
        found = _named_checkpoint(run, Path(resume))
    if found is None:
        if run.accelerator.is_main_process:
            _begin(run)
        run.accelerator.wait_for_everyone()
        return State()
    saved = json.loads((found.path / checkpoint.TRAINING).read_text(encoding="utf-8"))
    if saved["data"] != run.data.fingerprint:
        raise UsageError(
            f"{path} was trained on other data or with another tokenizer: their content has "
            "changed since it began; put it back, or give --out another directory"
        )
    _, weights = run.part.module().from_hf(*_hf.read(found.path))
    try:
        moments = load_file(found.path / checkpoint.MOMENTS)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{found.path / checkpoint.MOMENTS}: {error}") from error
    snapshot.restore(run.training, run.optimizer, weights, moments)
    state = State.from_json(saved["state"])
    run.log.say(f"going on from {found.path} (step {state.step})")
    return state


def _named_checkpoint(run: Run, path: Path) -> checkpoint.Checkpoint:
    problem = checkpoint.damage(path)
    if problem:
        raise FileError(f"{path}: not a good checkpoint: {problem}")
    step = json.loads((path / checkpoint.TRAINING).read_text(encoding="utf-8"))["state"]["step"]
    newer = [c for c in checkpoint.found(run.directory.path) if c.step > step]
    if newer:
        raise UsageError(
            f"{run.directory.path} holds newer checkpoints (step {newer[0].step}); "
            "give --out another directory to branch off"
        )
    return checkpoint.Checkpoint(path.resolve(), step)


def _begin(run: Run) -> None:
    """Write what a new run directory holds before its first step."""
    path = run.directory.path
    run.data.tokenizer.save(path / build.TOKENIZER)
    with checkpoint.naming_the_path(path / RECIPE):
        (path / RECIPE).write_text(run.resolved.to_yaml(), encoding="utf-8")
    run.directory.set_status(
        finished=False,
        nlpkit=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        processes=run.accelerator.num_processes,
        seed=run.resolved.recipe.seed,
        data=run.data.fingerprint,
        held_out_unigram_entropy=run.data.valid and run.data.valid.unigram_entropy(),
    )


def save(run: Run, state: State, best: bool) -> None:
    """Write the checkpoint of `state.step`, unless it is there; point `best` to it if it is."""
    path = run.directory.path
    there = {c.step: c for c in checkpoint.found(path)}.get(state.step)
    if there is None:
        weights = snapshot.weights(run.training)
        moments = snapshot.moments(run.training, run.optimizer)
        if run.accelerator.is_main_process:
            _write(run, state, weights, moments)
    if run.accelerator.is_main_process:
        if best:
            checkpoint.point(path, "best", checkpoint.place(path, state.step))
        checkpoint.prune(path, run.resolved.recipe.train.keep)
    run.accelerator.wait_for_everyone()


def _write(run: Run, state: State, weights: dict[str, Any], moments: dict[str, Any]) -> None:
    def write(directory: Path) -> None:
        _hf.write(directory, *run.part.module().to_hf(run.part.config, weights))
        run.data.tokenizer.save(directory)
        save_file({k: v.contiguous() for k, v in moments.items()}, directory / checkpoint.MOMENTS)
        content = {"state": state.to_json(), "data": run.data.fingerprint, "nlpkit": __version__}
        text = json.dumps(content, indent=1)
        (directory / checkpoint.TRAINING).write_text(text + "\n", encoding="utf-8")

    place = checkpoint.save(run.directory.path, state.step, write)
    run.log.detail(f"saved {place}")


def announce(run: Run, state: State) -> None:
    """Say what is about to be trained, on what."""
    data, log = run.data, run.log
    parameters = sum(p.numel() for p in run.bare.model.parameters())
    log.say(
        f"model: {run.part.family}, {parameters:,} parameters, "
        f"vocabulary {data.tokenizer.vocab_size:,}"
    )
    counts = data.train.counts
    left_out = ", ".join(f"{n:,} {name}" for name, n in _left_out(data).items() if n) or "nothing"
    log.say(
        f"text: {len(data.train):,} documents, {data.train.tokens:,} tokens, "
        f"{len(data.examples):,} examples; left out: {left_out}"
    )
    for bad in counts.first_bad:
        log.warn(f"skipped {bad}")
    if data.valid is not None:
        log.say(
            f"held out: {len(data.valid):,} documents, {data.valid.tokens:,} tokens, "
            f"unigram entropy {data.valid.unigram_entropy():.4f} nats"
        )
    if run.accelerator.num_processes > 1:
        log.say(f"processes: {run.accelerator.num_processes}")


def _left_out(data: build.Data) -> dict[str, int]:
    """Return what of the training text is not trained on, by reason."""
    counts, pieces = data.train.counts, data.examples.pieces
    return {
        "malformed rows": counts.bad,
        "empty texts": counts.empty,
        "documents held out": counts.held_out,
        "unknown tokens": counts.unknown,
        "documents without known tokens": counts.tokenless,
    } | {name.replace("_", " "): number for name, number in pieces.dropped.items()}


def conclude(run: Run, state: State, held_out: HeldOut | None) -> None:
    """Say how the run ended, in one or two lines."""
    run.log.say(f"finished {state.step} steps, {state.tokens:,} tokens")
    if held_out is not None and run.data.valid is not None:
        entropy = run.data.valid.unigram_entropy()
        run.log.say(
            f"best held-out loss {state.best_loss:.4f} nats/token at step {state.best_step} "
            f"(unigram entropy of the held-out text: {entropy:.4f})"
        )
