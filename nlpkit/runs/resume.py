"""Resumes a run from a checkpoint."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints import (
    any_layout,
    changes,
    files,
    hf_layout,
    hf_model,
    integrity,
    tokenizer_files,
)
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.runs import vocabulary
from nlpkit.runs.run import Run, from_first
from nlpkit.runs.save import state_text, write_start
from nlpkit.train import whole_tensors
from nlpkit.train.state import State

_NAMED = 3  # changed settings


def restore(run: Run, named: Path | None) -> tuple[files.Checkpoint, State]:
    """Restore the newest valid checkpoint of the run, or the one that `--resume` names.

    Writes nothing to the run's directory: that is for `save.begin`.

    Raises:
        UsageError: the data, the tokenizer or an allowed change does not fit the run.
        FileError: a file is missing or damaged, or does not fit the model.
    """
    checkpoint = from_first(lambda: _find_checkpoint(run, named))
    saved, state = read_state(checkpoint.path, run.settings.best_by)
    # Checkpoints of older versions do not have this setting.
    zero_at_last_step = saved.get("zero_at_last_step", True)
    run.settings = run.settings.model_copy(update={"zero_at_last_step": zero_at_last_step})
    optimizer, now = saved.get("optimizer", "adamw"), run.settings.optimizer.name
    if optimizer != now:
        raise UsageError(
            f"{checkpoint.path}: has the state of {optimizer}, and train.optimizer is {now}; start "
            f"another run with init_from: {checkpoint.path}"
        )
    then = saved.get("frozen", {})
    if others := [each for each in run.part.frozen if not each.has_hash(then.get(each.place))]:
        raise UsageError(
            f"{checkpoint.path} was trained with another {others[0].name} than "
            f"{others[0].checkpoint}; restore it, or give --out another directory"
        )
    if saved["data"] != run.data.fingerprint:
        raise UsageError(_changed_data(run, checkpoint.path))
    averaged = _has_average(run, checkpoint, saved)
    try:
        _restore_tensors(run, checkpoint.path, averaged)
    except (KeyError, RuntimeError, FileError) as error:
        if changes := _changes(
            run, "model", "attention", "objective", "lora", "prompt", "init_from"
        ):
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
    _note_change(
        *(run, "processes", run.accelerator.num_processes),
        "every step has the same examples, and losses are equal up to rounding; with dropout, "
        "masks are others",
    )
    what = "results are equal up to rounding, not bit for bit"
    _note_change(run, "threads", torch.get_num_threads(), what)
    if not from_first(lambda: files.list_directories(run.directory.path)):
        # The best one of the other run is not here.
        state.best_value, state.best_step, state.evaluations_without_gain = None, 0, 0
    return checkpoint, state


def write(run: Run, checkpoint: files.Checkpoint, state: State) -> None:
    """Write that the run goes on from a checkpoint of its own, or of another run."""
    path = run.directory.path
    if not files.list_directories(path):
        write_start(run)
        run.directory.set_status(resumed_from=str(checkpoint.path))
    elif changed := changes.list_changes(run.directory, run.resolved):  # allowed ones
        run.directory.write_recipe(run.resolved)
        run.directory.set_status(changed_settings=[*changed])
        if values := changed.get("train.tokens_per_batch"):  # a position counts batches
            run.log.warn(f"{values}: in this epoch, text is read again or left out")
    # The run may have been killed just before the pointers were set.
    if checkpoint.path.resolve().parent == files.checkpoint_path(path, 0).resolve().parent:
        files.set_pointer(path, "latest", checkpoint.path)
        best = files.checkpoint_path(path, state.best_step)
        if state.best_step == checkpoint.step:
            files.set_pointer(path, "best", checkpoint.path)
        elif (best / files.MANIFEST).is_file():  # a damaged one may have been the best since
            files.set_pointer(path, "best", best)
        if state.is_stable_end(run.settings):
            files.set_pointer(path, files.STABLE, checkpoint.path)


def amend(run: Run, checkpoint: Path, state: State) -> None:
    """Write the state to a checkpoint that was saved before the evaluation of its step."""
    if read_state(checkpoint, run.settings.best_by)[1] != state:
        integrity.amend(checkpoint, files.EVALUATED, state_text(run, state))


def _has_average(run: Run, checkpoint: files.Checkpoint, saved: JsonObject) -> bool:
    """Return whether a checkpoint has the average that the run has after this step."""
    if run.average is None or checkpoint.step < run.average.window[0]:
        return False
    window = run.average.window
    known = window if (checkpoint.path / files.TRAINED).is_file() else None  # in older versions
    if saved.get("average", known) == window:
        return True
    if run.average.settings.name == "ema":  # it begins here
        return False
    raise UsageError(
        f"train.average: the mean of this run begins at step {window[0]}, and {checkpoint.path} "
        "has another one; give the run more steps, or --out another directory and --resume a "
        "checkpoint from before that step"
    )


def _restore_tensors(run: Run, path: Path, averaged: bool) -> None:
    """Restore the weights and the optimizers' state of a checkpoint, and its average.

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
        if run.average and averaged:  # the weights of the model are the average
            whole_tensors.restore(run.training, run.optimizers, weights, optimizer_state)
            run.average.restore()
        weights = load_file(trained)
    whole_tensors.restore(run.training, run.optimizers, weights, optimizer_state)


def _changes(run: Run, *sections: str) -> str:
    """Return the changed settings in these sections of the recipe, with their values."""
    changed = [
        values
        for key, values in changes.list_changes(run.directory, run.resolved).items()
        # A null is also not set; the other model may not have the setting.
        if key.partition(".")[0] in sections and "not set then, not set now" not in values
    ]
    more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return ", ".join(changed[:_NAMED] + more)


def _note_change(run: Run, counted: str, now: int, what: str) -> None:
    """Log what changes for a run that was started with another number of processes or threads."""
    before = run.directory.status().get(counted)
    if before not in (None, now):
        run.log.info(
            f"this run was started with {number_of(before, counted)} and has {now} now: {what}"
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
    """Return the state dict of a checkpoint of this run; of adapters, only the trained part."""
    part = run.part
    if part.base_hash is None:
        return hf_model.from_hf(part.family, path, *hf_layout.read(path)).state
    stored = hf_layout.read_notes(path).get("base")
    if stored != part.base_hash and not (part.source and any_layout.is_base(part.source, stored)):
        raise FileError(f"{path}: {part.source} is not the base of these adapters")
    from nlpkit.checkpoints import peft_layout, prompt_layout

    if part.lora is None:
        return prompt_layout.read_state(path, part.family)
    return peft_layout.read_state(path, part.family, part.targets, run.data.vocab_size)


def _find_checkpoint(run: Run, named: Path | None) -> files.Checkpoint:
    path = run.directory.path
    begun = files.list_directories(path)
    # A run that began at the checkpoint goes on from its own newest one; a link may have moved.
    then = Path(run.directory.status().get("resumed_from") or "")
    moved = named is not None and named.is_symlink() and then.parent == named.resolve().parent
    if named is None or (begun and (moved or then == named.resolve())):
        return integrity.find_newest_valid(path, run.log.warn)
    if problem := integrity.find_corruption(named):
        raise FileError(f"{named}: not a valid checkpoint: {problem}")
    step = read_state(named, run.settings.best_by)[1].step
    own = named.resolve().parent == files.directory(path).resolve()
    if begun and (not own or begun[0].step > step):
        raise UsageError(
            f"{path} has {'newer checkpoints' if own else 'checkpoints of its own'} (step "
            f"{begun[0].step}); give --out another directory to start from this one"
        )
    return files.Checkpoint(named.resolve(), step)


def read_state(path: Path, best_by: str) -> tuple[JsonObject, State]:
    """Return `training.json` of a checkpoint and the state in it.

    If `best_by` has changed after it was saved, the state has no best value.
    """
    file = path / files.TRAINING
    try:
        file = files.training_file(path)
        saved = json.loads(file.read_text(encoding="utf-8"))
        state = State.from_json(saved["state"], best_by)
        if not isinstance(saved["data"], str) or not _has_numbers(state):
            raise TypeError("a value is of the wrong type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{file}: not the state of a run: {error}") from error
    if saved.get("best_by", best_by) != best_by:  # --allow-change
        state.best_value, state.best_step, state.evaluations_without_gain = None, 0, 0
    return saved, state


def _has_numbers(state: State) -> bool:
    """Return whether all values of a state are numbers that are not negative."""
    values = state.to_json()
    best = values.pop("best_value")
    # A score may be negative, and None means that there is no best value yet.
    values["best_value"] = abs(best) if isinstance(best, (int, float)) else best or 0
    found = [*values.pop("position"), *values.pop("times", {}).values(), *values.values()]
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) and n >= 0 for n in found)
