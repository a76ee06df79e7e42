"""Resumes a run from a checkpoint."""

import platform
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    any_layout,
    files,
    hf_layout,
    hf_model,
    tokenizer_files,
)
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.runs import vocabulary
from nlpkit.runs.run import Run
from nlpkit.runs.save import find_problem, read_state
from nlpkit.train import snapshot
from nlpkit.train.state import State

_NAMED = 3  # changed settings


def restore(run: Run, checkpoint: files.Checkpoint) -> State:
    """Restore a checkpoint and return its state.

    Writes nothing to the run's directory: that is for `begin`.

    Raises:
        UsageError: the data, the tokenizer or an allowed change does not fit the run.
        FileError: a file is missing or damaged, or does not fit the model.
    """
    saved, state = read_state(checkpoint.path, run.settings.best_by)
    # Checkpoints of older versions do not have this setting.
    zero_at_last_step = saved.get("zero_at_last_step", True)
    run.settings = run.settings.model_copy(update={"zero_at_last_step": zero_at_last_step})
    _check_optimizer(run, checkpoint.path, saved.get("optimizer", "adamw"))
    if saved["data"] != run.data.fingerprint:
        raise UsageError(_changed_data(run, checkpoint.path))
    try:
        _restore_tensors(run, checkpoint.path)
    except (KeyError, RuntimeError, FileError) as error:
        if changes := _changes(run, "model", "attention", "objective", "lora", "init_from"):
            raise UsageError(
                f"{changes}; a run keeps its weights, also with --allow-change, and those of "
                f"{checkpoint.path} do not fit; give --out another directory"
            ) from error
        if isinstance(error, FileError):
            raise
        first = str(error).split("\n")[:2][-1].strip()  # torch lists all tensors
        raise FileError(
            f"{checkpoint.path}: does not fit the model of the recipe: {first}"
        ) from error
    run.log.info(f"resuming from {checkpoint.path} (step {state.step})")
    _note_processes(run)
    before, now = run.directory.status().get("threads"), torch.get_num_threads()
    if before not in (None, now):
        run.log.info(
            f"this run was started with {number_of(before, 'threads')} and has {now} now: "
            "results are equal up "
            "to rounding, not bit for bit"
        )
    return state


def begin(run: Run, checkpoint: files.Checkpoint | None, state: State) -> None:
    """Write that a run starts or goes on from a checkpoint; call it when nothing can refuse it."""
    directory = run.directory
    if run.accelerator.is_main_process:
        own = files.list_directories(directory.path)
        if not own:  # a new run, or one from a checkpoint of another run
            _write_start(run)
        elif directory.differences(run.resolved):  # allowed changes
            directory.write_recipe(run.resolved)
        if checkpoint is not None:
            if not own:
                directory.set_status(resumed_from=str(checkpoint.path))
            _set_pointers(run, checkpoint, state)
        directory.set_status(
            # With --allow-change, or finished with weights that are not finite, it has steps to do.
            finished=False,
            diverged=False,
            steps=run.settings.known_steps,
            precision=run.settings.precision,
        )
        if directory.status().get("budget_seconds") != run.settings.budget_seconds:
            directory.set_status(budget_seconds=run.settings.budget_seconds)
    run.accelerator.wait_for_everyone()


def _restore_tensors(run: Run, path: Path) -> None:
    """Restore the weights and the optimizers' state of a checkpoint.

    Raises:
        KeyError, RuntimeError: a tensor is missing, or has another shape.
    """
    from nlpkit.checkpoints import objective_heads

    weights = {**_weights(run, path), **objective_heads.read(path)}
    try:
        optimizer_state = load_file(path / files.OPTIMIZER_STATE)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path / files.OPTIMIZER_STATE}: {error}") from error
    if (trained := path / files.TRAINED).is_file():
        if run.average:  # the weights of the model are the average
            snapshot.restore(run.training, run.optimizers, weights, optimizer_state)
            run.average.restore()
        weights = load_file(trained)
    snapshot.restore(run.training, run.optimizers, weights, optimizer_state)


def _changes(run: Run, *sections: str) -> str:
    """Return the changed settings in these sections of the recipe, with their values."""
    changed = [
        values
        for key, values in run.directory.differences(run.resolved).items()
        # A null is also not set; the other model may not have the setting.
        if key.partition(".")[0] in sections and "not set then, not set now" not in values
    ]
    more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return ", ".join(changed[:_NAMED] + more)


def _note_processes(run: Run) -> None:
    """Log what changes for a run that was started with another number of processes."""
    before, now = run.directory.status().get("processes"), run.accelerator.num_processes
    if before not in (None, now):
        run.log.info(
            f"this run was started with {number_of(before, 'processes')} and has {now} now: every "
            "step has the same examples, and losses are equal up to rounding; with dropout, masks "
            "are others"
        )


def _check_optimizer(run: Run, checkpoint: Path, then: str) -> None:
    """Raise `UsageError` if the state of a checkpoint is that of another optimizer."""
    now = run.settings.optimizer.name
    if then != now:
        raise UsageError(
            f"{checkpoint}: has the state of {then}, and train.optimizer is {now}; start another "
            f"run with init_from: {checkpoint}"
        )


def _changed_data(run: Run, checkpoint: Path) -> str:
    """Return what has changed since the start of the run: its tokenizer, or the data."""
    path, now = run.directory.path, run.data.tokenizer
    if changes := _changes(run, "data") or _changes(run, "objective"):
        return (
            f"{changes}; a run keeps its data and their tokens, also with --allow-change; "
            "give --out another directory"
        )
    other = "or give --out another directory"
    if now is not None:
        then = tokenizer_files.load(any_layout.find_tokenizer(checkpoint))[1]
        if not tokenizer_files.reads_alike(then, now):
            return (
                f"{path / vocabulary.TOKENIZER}: not the tokenizer that the run was started with; "
                f"copy its files from {checkpoint}, {other}"
            )
    return (
        f"{checkpoint} was trained on other data: their content has changed since then; "
        f"restore it, {other}"
    )


def _weights(run: Run, path: Path) -> dict[str, Tensor]:
    """Return the state dict of a checkpoint of this run; with LoRA, only the trained part."""
    part = run.part
    if part.lora is None:
        return hf_model.from_hf(part.family, path, *hf_layout.read(path)).state
    if hf_layout.read_notes(path).get("base") != part.base_hash:
        raise FileError(f"{path}: {part.source} is not the base of these adapters")
    from nlpkit.checkpoints import peft_layout

    return peft_layout.read_state(path, part.family, part.targets, run.data.vocab_size)


def find_checkpoint(run: Run, resume: str) -> files.Checkpoint | None:
    """Return the checkpoint that the run goes on from: the newest valid one, or that of `--resume`.

    Raises:
        UsageError, FileError: `--resume` names none, or one that does not fit.
    """
    path = run.directory.path
    named = named_checkpoint(resume)
    begun = files.list_directories(path) and run.directory.status().get("resumed_from")
    if resume == "auto" or (named and begun == str(named.resolve())):
        return files.find_newest_valid(path, run.log.warn, find_problem)
    if named is not None:
        return _valid(run, named)
    if files.list_directories(path):
        raise UsageError(f"{path} has checkpoints of a run; give --out another directory")
    return None


def named_checkpoint(resume: str) -> Path | None:
    """Return the checkpoint that `--resume` names, or None for `auto` and `never`."""
    return None if resume in ("auto", "never") else Path(resume)


def _valid(run: Run, path: Path) -> files.Checkpoint:
    if not path.exists():
        raise FileError(f"--resume {path}: no such checkpoint")
    problem = find_problem(path)
    if problem:
        raise FileError(f"{path}: not a valid checkpoint: {problem}")
    step = read_state(path, run.settings.best_by)[1].step
    newer = [c for c in files.list_directories(run.directory.path) if c.step > step]
    if newer:
        raise UsageError(
            f"{run.directory.path} has newer checkpoints (step {newer[0].step}); "
            "give --out another directory to start from this one"
        )
    return files.Checkpoint(path.resolve(), step)


def _set_pointers(run: Run, checkpoint: files.Checkpoint, state: State) -> None:
    """Set the pointers again, because the run may have been killed just before they were set."""
    path = run.directory.path
    if checkpoint.path.resolve().parent == files.checkpoint_path(path, 0).resolve().parent:
        files.set_pointer(path, "latest", checkpoint.path)
        if state.best_step == checkpoint.step:
            files.set_pointer(path, "best", checkpoint.path)
        if state.is_stable_end(run.settings):
            files.set_pointer(path, files.STABLE, checkpoint.path)


def _write_start(run: Run) -> None:
    """Write the recipe and the status of a new run."""
    run.directory.write_recipe(run.resolved)
    run.directory.set_status(
        nlpkit=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        processes=run.accelerator.num_processes,
        seed=run.resolved.recipe.seed,
        data=run.data.fingerprint,
        held_out_unigram_entropy=run.data.held_out_entropy(),
    )
