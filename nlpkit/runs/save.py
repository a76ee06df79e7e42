"""Saves the state of a run as a checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    files,
    generation_settings,
    hf_layout,
    objective_heads,
    peft_layout,
    preprocessor,
    tokenizer_files,
)
from nlpkit.disk import name_path_in_errors
from nlpkit.models import lora
from nlpkit.objectives._preprocessed import Preprocessed
from nlpkit.runs import build, state_file, vocabulary
from nlpkit.runs.finite import check_finite
from nlpkit.runs.run import Run
from nlpkit.train import snapshot
from nlpkit.train.state import State


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
    elif run.accelerator.is_main_process and state_file.read(existing.path, best_by)[1] != state:
        files.amend(existing.path, files.EVALUATED, state_file.to_text(run, state))
    if run.accelerator.is_main_process:
        saved = files.checkpoint_path(path, state.step)
        if best:
            files.set_pointer(path, "best", saved)
        if state.is_stable_end(run.settings):
            files.set_pointer(path, files.STABLE, saved)
        files.prune(path, run.settings.keep)
    run.accelerator.wait_for_everyone()


def rehearse(run: Run) -> None:
    """Write a checkpoint without its tensors and remove it: what cannot be saved fails at once."""
    weights = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in run.unwrapped.model.state_dict().items()
    }
    draft = run.directory.path / ".rehearsal"
    with name_path_in_errors(draft):
        shutil.rmtree(draft, ignore_errors=True)  # of a start that was killed
        draft.mkdir()
        try:
            _write_model(run, draft, weights, 0.0)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


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
        _write_model(run, directory, weights, state.progress(run.settings))
        for name, tensors in others.items():
            hf_layout.save_tensors(directory / name, tensors)
        (directory / files.TRAINING).write_text(state_file.to_text(run, state), encoding="utf-8")

    _keep_tokenizer(run)
    path = files.save(run.directory.path, state.step, write)
    run.log.detail(f"saved {path}")


def _write_model(run: Run, directory: Path, weights: dict[str, Tensor], progress: float) -> None:
    """Write the model, or only its adapters, its tokenizer and `nlpkit.json`.

    `progress` is the completed share of the run, for losses that depend on it.
    """
    part, objective, tokenizer = run.part, run.data.objective, run.data.tokenizer
    weights, own = objective_heads.split(weights)
    objective_heads.write(directory, own)
    pad_id = None if tokenizer is None else tokenizer.pad_id
    ends = generation_settings.begin_and_end(objective, tokenizer)
    notes: dict[str, Any] = {
        "nlpkit": __version__,
        "objective": build.objective_notes(run.resolved, objective),
        "progress": progress,
    }
    plain = lora.base_state(weights)
    labels = getattr(objective.config, "labels", None)
    folders = hf_layout.layout(
        *(part.family, part.config, plain, labels, pad_id, ends, part.head),
        target_ids=tokenizer_files.target_ids(tokenizer, part.config.target_tokens),
    )
    settings, tensors = folders[""]
    if getattr(objective.config, "regression", False):  # else transformers squeezes the number
        settings["problem_type"] = "regression"
    generation_settings.write(
        directory, generation_settings.of_objective(objective, tokenizer, settings)
    )
    if part.lora is None:
        hf_layout.write_folders(directory, folders)
    else:
        assert part.source is not None  # checked by the recipe
        grown = bool(part.new_tokens(run.data.vocab_size))
        hf_layout.write_settings(directory, settings)
        adapters = (part.family, part.lora, part.targets, part.source, part.head_kind)
        peft_layout.write(directory, peft_layout.Adapters(*adapters), weights, tensors, grown=grown)
        notes["base"] = part.base_hash
    hf_layout.write_notes(directory, notes)
    if isinstance(objective, Preprocessed):
        preprocessor.write(directory, objective.preprocessor())
    if tokenizer is not None:
        use = tokenizer_files.use_of(objective, part.config, tokenizer)
        tokenizer_files.save(tokenizer, directory, use)
