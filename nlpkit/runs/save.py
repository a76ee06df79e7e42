"""Saves the state of a run as a checkpoint, and reads it: `training.json`."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    files,
    hf_model,
    hf_writing,
    tokenizer_files,
)
from nlpkit.disk import name_path_in_errors
from nlpkit.errors import DivergedError, FileError
from nlpkit.runs import build, vocabulary
from nlpkit.runs.run import Run, from_first
from nlpkit.train import snapshot
from nlpkit.train.state import State

FITTED = "fitted"  # what `train.memory` chose when the run began; also in run.json


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
    elif run.accelerator.is_main_process and read_state(existing.path, best_by)[1] != state:
        files.amend(existing.path, files.EVALUATED, state_text(run, state))
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
            hf_writing.save_tensors(directory / name, tensors)
        (directory / files.TRAINING).write_text(state_text(run, state), encoding="utf-8")

    _keep_tokenizer(run)
    path = files.save(run.directory.path, state.step, write)
    run.log.detail(f"saved {path}")


def _write_model(run: Run, directory: Path, weights: dict[str, Tensor], progress: float) -> None:
    """Write the model, or only its adapters, its tokenizer and `nlpkit.json`.

    `progress` is the completed share of the run, for losses that depend on it.
    """
    part, objective, tokenizer = run.part, run.data.objective, run.data.tokenizer
    if any(name.startswith(hf_model.OBJECTIVE_HEADS) for name in weights):
        from nlpkit.checkpoints import objective_heads

        weights = objective_heads.write(directory, weights)
    ids = hf_writing.find_token_ids(objective, tokenizer, part.config)
    notes: dict[str, Any] = {
        "nlpkit": __version__,
        "objective": build.objective_notes(run.resolved, objective),
        "progress": progress,
    }
    plain = weights
    if part.lora is not None:
        from nlpkit.models import lora

        plain = lora.remove_adapters(weights)
    labels = objective.config.setting("labels")
    folders = hf_writing.to_hf(part.family, part.config, plain, ids, part.head, labels)
    settings, tensors = folders[""]
    if objective.config.setting("regression", False):  # else transformers squeezes the number
        settings["problem_type"] = "regression"
    hf_writing.write_generation(
        directory, hf_writing.choose_generation(objective, tokenizer, settings)
    )
    if part.lora is None:
        hf_writing.write_folders(directory, folders)
    else:
        from nlpkit.checkpoints import peft_layout

        assert part.source is not None  # checked by the recipe
        grown = bool(part.new_tokens(run.data.vocab_size))
        hf_writing.write_settings(directory, settings)
        adapters = (part.family, part.lora, part.targets, part.source, part.head_kind)
        peft_layout.write(directory, peft_layout.Adapters(*adapters), weights, tensors, grown=grown)
        notes["base"] = part.base_hash
    hf_writing.write_notes(directory, notes)
    for name, text in objective.checkpoint_files().items():
        (directory / name).write_text(text, encoding="utf-8")
    if tokenizer is not None:
        use = tokenizer_files.describe_use(objective, part.config, tokenizer)
        tokenizer_files.save(tokenizer, directory, use)


def read_state(path: Path, best_by: str) -> tuple[dict[str, Any], State]:
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
    return [*values.pop("position"), *values.pop("times", {}).values(), *values.values()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def state_text(run: Run, state: State) -> str:
    """Return the content of `training.json`."""
    content = {
        "state": state.to_json(),
        "best_by": run.settings.best_by,
        "optimizer": run.settings.optimizer.name,
        "zero_at_last_step": run.settings.zero_at_last_step,
        "data": run.data.fingerprint,
        "nlpkit": __version__,
    }
    if fitted := run.directory.status().get(FITTED):
        content[FITTED] = fitted
    return json.dumps(content, indent=1) + "\n"


def check_finite(step: int, weights: Mapping[str, Tensor]) -> None:
    """Raise `DivergedError` if a weight is not finite; all processes raise it together."""
    if name := from_first(PartialState(), lambda: _first_not_finite(weights)):
        raise DivergedError(f"step {step}: weights of {name} are not finite; nothing is saved")


def find_problem(path: Path) -> str | None:
    """Return the first problem of a checkpoint's files or weights, or None."""
    return files.find_corruption(path) or find_not_finite(path)


def find_not_finite(path: Path) -> str | None:
    """Return which weights of a checkpoint are not finite, or None."""
    for file in sorted(path.rglob("*.safetensors")):
        if file.name == files.OPTIMIZER_STATE:
            continue
        try:
            name = _first_not_finite(load_file(file))
        except (SafetensorError, OSError):  # the reader of the weights says what is wrong
            continue
        if name:
            return f"weights of {name} are not finite: the training diverged before it was saved"
    return None


def _first_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    return next((name for name, each in weights.items() if not each.isfinite().all()), None)
