"""Saves the state of a run as a checkpoint, and resumes a run from a checkpoint."""

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    any_layout,
    files,
    hf_layout,
    objective_heads,
    peft_layout,
    preprocessor,
    tokenizer_files,
)
from nlpkit.disk import name_path_in_errors
from nlpkit.errors import FileError, UsageError
from nlpkit.models.hf_format import table_names
from nlpkit.objectives._preprocessed import Preprocessed
from nlpkit.plural import number_of
from nlpkit.runs import build, vocabulary
from nlpkit.runs.finite import check_finite, find_problem
from nlpkit.runs.run import Run, from_first
from nlpkit.train import snapshot
from nlpkit.train.schedule import stable_end
from nlpkit.train.state import State


def restore(run: Run, resume: str) -> State:
    """Restore the newest valid checkpoint and return its state, or a new state if there is none.

    Raises:
        UsageError: the data, the tokenizer or `--resume` does not fit the run.
        FileError: a file is missing or damaged, or does not fit the model.
    """
    checkpoint = from_first(PartialState(), lambda: _checkpoint_to_resume(run, resume))
    if checkpoint is None:
        if run.accelerator.is_main_process:
            _write_start(run)
        run.accelerator.wait_for_everyone()
        return State()
    saved, state = _training(checkpoint.path, run.settings.best_by)
    # Checkpoints of older versions do not have this setting.
    zero_at_last_step = saved.get("zero_at_last_step", True)
    run.settings = run.settings.model_copy(update={"zero_at_last_step": zero_at_last_step})
    _check_optimizer(run, checkpoint.path, saved.get("optimizer", "adamw"))
    if saved["data"] != run.data.fingerprint:
        raise UsageError(_changed_data(run, checkpoint.path))
    weights = {**_weights(run, checkpoint.path), **objective_heads.read(checkpoint.path)}
    try:
        optimizer_state = load_file(checkpoint.path / files.OPTIMIZER_STATE)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{checkpoint.path / files.OPTIMIZER_STATE}: {error}") from error
    try:
        if (trained := checkpoint.path / files.TRAINED).is_file():
            if run.average:  # the weights of the model are the average
                snapshot.restore(run.training, run.optimizers, weights, optimizer_state)
                run.average.restore()
            weights = load_file(trained)
        snapshot.restore(run.training, run.optimizers, weights, optimizer_state)
    except (KeyError, RuntimeError) as error:  # a tensor is missing, or has another shape
        raise FileError(
            f"{checkpoint.path}: does not fit the model of the recipe: {error}"
        ) from error
    if run.accelerator.is_main_process:
        if not files.list_directories(run.directory.path):  # from a checkpoint of another run
            _write_start(run)
            run.directory.set_status(resumed_from=str(checkpoint.path))
        _set_pointers(run, checkpoint, state)
        # With --allow-change, or finished with weights that are not finite, it has steps to do.
        run.directory.set_status(finished=False, steps=run.settings.steps)
    run.log.info(f"resuming from {checkpoint.path} (step {state.step})")
    before, now = run.directory.status().get("threads"), torch.get_num_threads()
    if before not in (None, now):
        run.log.info(
            f"this run was started with {number_of(before, 'threads')} and has {now} now: "
            "results are equal up "
            "to rounding, not bit for bit"
        )
    return state


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
    other = "or give --out another directory"
    if now is not None:
        then = tokenizer_files.load(any_layout.tokenizer_home(checkpoint))[1]
        if then.fingerprint() != now.fingerprint():
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
        return hf_layout.converted(part.family, path, *hf_layout.read(path)).state
    if hf_layout.read_notes(path).get("base") != part.base_hash:
        raise FileError(f"{path}: {part.source} is not the base of these adapters")
    try:
        return peft_layout.read_state(path, part.family, part.targets, run.data.vocab_size)
    except KeyError as error:
        raise FileError(f"{path}: {error} is missing from {peft_layout.WEIGHTS}") from error


def _checkpoint_to_resume(run: Run, resume: str) -> files.Checkpoint | None:
    path = run.directory.path
    named = named_checkpoint(resume)
    begun = files.list_directories(path) and run.directory.status().get("resumed_from")
    if resume == "auto" or (named and begun == str(named.resolve())):
        return files.newest_valid(path, run.log.warn, find_problem)
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
    step = _training(path, run.settings.best_by)[1].step
    newer = [c for c in files.list_directories(run.directory.path) if c.step > step]
    if newer:
        raise UsageError(
            f"{run.directory.path} has newer checkpoints (step {newer[0].step}); "
            "give --out another directory to start from this one"
        )
    return files.Checkpoint(path.resolve(), step)


def _training(path: Path, best_by: str) -> tuple[dict[str, Any], State]:
    """Return `training.json` of a checkpoint and the state in it.

    If `best_by` has changed after it was saved, the state has no best value.
    """
    file = path / files.TRAINING
    try:
        file = files.training_file(path)
        saved = json.loads(file.read_text(encoding="utf-8"))
        state = State.from_json(saved["state"], best_by)
        if not isinstance(saved["data"], str) or not all(map(_is_number, _numbers(state))):
            raise TypeError("a value is of the wrong type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{file}: not the state of a run: {error}") from error
    if saved.get("best_by", best_by) != best_by:  # --allow-change
        state.best_value, state.best_step, state.evaluations_without_gain = None, 0, 0
    return saved, state


def _numbers(state: State) -> list[Any]:
    values = state.to_json()
    best = values.pop("best_value")
    # A score may be negative, and None means that there is no best value yet.
    values["best_value"] = abs(best) if isinstance(best, (int, float)) else best or 0
    return [*values.pop("position"), *values.values()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _set_pointers(run: Run, checkpoint: files.Checkpoint, state: State) -> None:
    """Set the pointers again, because the run may have been killed just before they were set."""
    path = run.directory.path
    if checkpoint.path.resolve().parent == files.checkpoint_path(path, 0).resolve().parent:
        files.set_pointer(path, "latest", checkpoint.path)
        if state.best_step == checkpoint.step:
            files.set_pointer(path, "best", checkpoint.path)
        if checkpoint.step == stable_end(run.settings):
            files.set_pointer(path, files.STABLE, checkpoint.path)


def _write_start(run: Run) -> None:
    """Write the recipe and the status of a new run."""
    run.directory.write_recipe(run.resolved)
    run.directory.set_status(
        finished=False,
        steps=run.settings.steps,
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


def save(run: Run, state: State, best: bool) -> None:
    """Save the checkpoint of `state.step`; with `best`, set the link `best` to this checkpoint.

    A checkpoint that exists was saved before the evaluation of its step; it gets the new state.

    Raises:
        DivergedError: a weight is not finite; nothing is saved.
    """
    path, best_by = run.directory.path, run.settings.best_by
    existing = {c.step: c for c in files.list_checkpoints(path)}.get(state.step)
    if existing is None:
        others = {files.OPTIMIZER_STATE: snapshot.optimizer_state(run.training, run.optimizers)}
        if run.average and run.average.mean:
            trained = snapshot.weights(run.training)
            check_finite(state.step, trained)
            # Copies: on a CPU, the tensors are those of the model, which now take the average.
            others[files.TRAINED] = {name: each.clone() for name, each in trained.items()}
        with run.averaged():
            weights = snapshot.weights(run.training)
            check_finite(state.step, weights)
            if run.accelerator.is_main_process:
                _write(run, state, weights, others)
    elif run.accelerator.is_main_process and _training(existing.path, best_by)[1] != state:
        files.amend(existing.path, files.EVALUATED, _state_text(run, state))
    if run.accelerator.is_main_process:
        saved = files.checkpoint_path(path, state.step)
        if best:
            files.set_pointer(path, "best", saved)
        if state.step == stable_end(run.settings):
            files.set_pointer(path, files.STABLE, saved)
        files.prune(path, run.settings.keep)
    run.accelerator.wait_for_everyone()


def _keep_tokenizer(run: Run) -> None:
    """Save the tokenizer in the run directory, atomically, if the directory has no tokenizer.

    This is done together with the first checkpoint: after a failed start, the settings may change,
    and the old tokenizer must not be used.
    """
    path = run.directory.path / vocabulary.TOKENIZER
    if path.is_dir() or run.data.tokenizer is None:
        return
    draft = path.with_name(f".{path.name}")
    with name_path_in_errors(path):
        shutil.rmtree(draft, ignore_errors=True)
        tokenizer_files.save(run.data.tokenizer, draft)
        draft.rename(path)


def _write(
    run: Run, state: State, weights: dict[str, Tensor], others: dict[str, dict[str, Tensor]]
) -> None:
    """Write a checkpoint of a model with these weights; `others` are tensors by file."""

    def write(directory: Path) -> None:
        _write_model(run, directory, weights, state.step / run.settings.steps)
        if run.data.tokenizer is not None:
            tokenizer_files.save(run.data.tokenizer, directory, token_types=run.part.config.pairs)
        for name, tensors in others.items():
            hf_layout.save_tensors(directory / name, tensors)
        (directory / files.TRAINING).write_text(_state_text(run, state), encoding="utf-8")

    _keep_tokenizer(run)
    path = files.save(run.directory.path, state.step, write)
    run.log.detail(f"saved {path}")


def _write_model(run: Run, directory: Path, weights: dict[str, Tensor], progress: float) -> None:
    """Write the model, or only its adapters, and `nlpkit.json`.

    `progress` is the completed share of the run, for losses that depend on it.
    """
    part, objective, tokenizer = run.part, run.data.objective, run.data.tokenizer
    weights, own = objective_heads.split(weights)
    objective_heads.write(directory, own)
    pad_id = None if tokenizer is None else tokenizer.pad_id
    ends = (None, None) if tokenizer is None else (tokenizer.bos_id, tokenizer.eos_id)
    notes: dict[str, Any] = {
        "nlpkit": __version__,
        "objective": build.objective_notes(run.resolved, objective),
        "progress": progress,
    }
    plain = {key: value for key, value in weights.items() if ".lora_" not in key}
    labels = getattr(objective.config, "labels", None)
    folders = hf_layout.layout(
        *(part.family, part.config, plain, labels, pad_id, ends, part.head),
        target_ids=tokenizer_files.target_ids(tokenizer, part.config.target_tokens),
    )
    settings, tensors = folders[""]
    if part.lora is None:
        hf_layout.write_folders(directory, folders)
    else:
        assert part.source is not None  # checked by the recipe
        embeddings = [name for name in part.vocabulary if name in weights]
        names = table_names(part.module().FORMAT, embeddings).values()
        grown = part.new_tokens(run.data.vocab_size)
        tables = {name: tensors[name] for name in names} if grown else {}
        hf_layout.write_settings(directory, settings)
        peft_layout.write(
            directory,
            part.family,
            part.config,
            part.lora,
            part.targets,
            weights,
            tables,
            part.source,
            part.head_kind,
        )
        notes["base"] = part.base_hash
    hf_layout.write_notes(directory, notes)
    if isinstance(objective, Preprocessed):
        preprocessor.write(directory, objective.preprocessor())


def _state_text(run: Run, state: State) -> str:
    content = {
        "state": state.to_json(),
        "best_by": run.settings.best_by,
        "optimizer": run.settings.optimizer.name,
        "zero_at_last_step": run.settings.zero_at_last_step,
        "data": run.data.fingerprint,
        "nlpkit": __version__,
    }
    return json.dumps(content, indent=1) + "\n"
