"""Writes that a run begins, and its state as a checkpoint."""

import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import files, hf_model, hf_writing, tokenizer_files
from nlpkit.disk import file_sha256, name_path_in_errors, whole_directory
from nlpkit.errors import DivergedError
from nlpkit.json_types import JsonObject
from nlpkit.runs import build, vocabulary
from nlpkit.runs.run import FITTED, Run, from_first
from nlpkit.train import shards
from nlpkit.train.machine import find_processor
from nlpkit.train.state import State

_ONLY_OURS = (
    "transformers has no such model, and refuses to open what is saved; nlpkit runs it as trained"
)


def save(run: Run, state: State, best: bool) -> None:
    """Save the checkpoint of `state.step`; with `best`, set the link `best` to this checkpoint.

    A checkpoint that exists was saved before the evaluation of its step; it gets the new state.

    Raises:
        DivergedError: a weight is not finite; nothing is saved.
    """
    path = run.directory.path
    existing = from_first(lambda: {c.step: c for c in files.list_checkpoints(path)}.get(state.step))
    if existing is None:
        others = {files.OPTIMIZER_STATE: shards.optimizer_state(run.training, run.optimizers)}
        if run.average and run.average.mean:
            others[files.TRAINED] = _copy_trained(run, state.step)
        with run.averaged():
            weights = shards.weights(run.training)
            check_finite(state.step, weights)
            if run.accelerator.is_main_process:
                _write(run, state, weights, others)
    elif run.accelerator.is_main_process:
        from nlpkit.runs import resume

        resume.amend(run, existing.path, state)
    if run.accelerator.is_main_process:
        saved = files.checkpoint_path(path, state.step)
        if best:
            files.set_pointer(path, "best", saved)
        if state.is_stable_end(run.settings):
            files.set_pointer(path, files.STABLE, saved)
        files.prune(path, run.settings.keep)
    run.accelerator.wait_for_everyone()


def _copy_trained(run: Run, step: int) -> dict[str, Tensor]:
    fixed = {n for n, p in run.unwrapped.model.named_parameters() if not p.requires_grad}
    trained = {n: p for n, p in shards.weights(run.training).items() if n not in fixed}
    check_finite(step, trained)
    # On a CPU, the tensors are those of the model, which then take the average.
    return {name: each.clone() for name, each in trained.items()}


def rehearse(run: Run) -> None:
    """Write a checkpoint without its tensors and remove it: what cannot be saved fails at once."""
    weights = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in run.unwrapped.model.state_dict().items()
    }
    if (passes := run.part.config.setting("passes", 1)) > 1:
        run.log.warn(f"model.passes: {passes}: {_ONLY_OURS}")
    draft = run.directory.path / ".rehearsal"
    with name_path_in_errors(draft):
        shutil.rmtree(draft, ignore_errors=True)  # of a start that was killed
        draft.mkdir()
        try:
            write_model(run, draft, weights, 0.0)
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
    with whole_directory(path, path.with_name(f".{path.name}")) as draft:
        tokenizer_files.save(run.data.tokenizer, draft)


def _write(
    run: Run, state: State, weights: dict[str, Tensor], others: dict[str, dict[str, Tensor]]
) -> None:
    """Write a checkpoint of a model with these weights; `others` are tensors by file."""

    def write(directory: Path) -> None:
        write_model(run, directory, weights, state.progress(run.settings))
        for name, tensors in others.items():
            hf_writing.save_tensors(directory / name, tensors)
        (directory / files.TRAINING).write_text(state_text(run, state), encoding="utf-8")

    _keep_tokenizer(run)
    path = files.save(run.directory.path, state.step, write)
    run.log.detail(f"saved {path}")


def write_model(run: Run, directory: Path, weights: dict[str, Tensor], progress: float) -> None:
    """Write the model, or only its adapters, its tokenizer and `nlpkit.json`.

    `progress` is the completed share of the run, for losses that depend on it.
    """
    part, objective, tokenizer = run.part, run.data.objective, run.data.tokenizer
    if any(name.startswith(hf_model.OBJECTIVE_HEADS) for name in weights):
        from nlpkit.checkpoints import objective_heads

        weights = objective_heads.write(directory, weights)
    ids = hf_writing.find_token_ids(objective, tokenizer, part.config)
    notes: JsonObject = {
        "nlpkit": __version__,
        "objective": build.objective_notes(run.resolved, objective),
        "progress": progress,
        "seed": run.resolved.recipe.seed,  # of the masks and the like that `nlpkit eval` draws
    }
    plain = weights
    if part.base_hash is not None:
        from nlpkit.runs import adapters

        plain = adapters.remove(part, weights)
    labels = objective.config.setting("labels")
    head = part.head if part.outputs else None
    folders = hf_writing.to_hf(part.family, part.config, plain, ids, head, labels)
    settings, tensors = folders[""]
    if objective.config.setting("regression", False):  # else transformers squeezes the number
        settings["problem_type"] = "regression"
    generation = hf_writing.choose_generation(objective, tokenizer, settings)
    hf_writing.write_generation(directory, generation)
    if part.base_hash is None:
        hf_writing.write_folders(directory, folders)
    else:
        notes["base"] = part.base_hash
        hf_writing.write_settings(directory, settings)
        adapters.write(directory, part, weights, tensors, run.data.vocab_size)
    hf_writing.write_notes(directory, notes)
    for name, text in objective.checkpoint_files().items():
        (directory / name).write_text(text, encoding="utf-8")
    if tokenizer is not None:
        use = tokenizer_files.describe_use(objective, part.config, tokenizer)
        tokenizer_files.save(tokenizer, directory, use)


def state_text(run: Run, state: State) -> str:
    """Return the content of `training.json`."""
    content = {
        "state": state.to_json(),
        "best_by": run.settings.best_by,
        "optimizer": run.settings.optimizer.name,
        "precision": run.settings.precision,
        "zero_at_last_step": run.settings.zero_at_last_step,
        "average": run.average and run.average.window,
        "frozen": {each.place: each.sha256 for each in run.part.frozen},
        "data": run.data.fingerprint,
        "nlpkit": __version__,
    }
    if run.fitted:
        content[FITTED] = run.fitted
    return json.dumps(content, indent=1) + "\n"


def check_finite(step: int, weights: Mapping[str, Tensor]) -> None:
    """Raise `DivergedError` if a weight is not finite; all processes raise it together."""
    wrong = (name for name, each in weights.items() if not each.isfinite().all())
    if name := from_first(lambda: next(wrong, None)):
        raise DivergedError(f"step {step}: weights of {name} are not finite; nothing is saved")


def begin(run: Run, checkpoint: files.Checkpoint | None, state: State) -> None:
    """Write that a run starts or goes on from a checkpoint; call it when nothing can refuse it."""
    if run.accelerator.is_main_process:
        if checkpoint is None:
            write_start(run)
        else:
            from nlpkit.runs import resume

            resume.write(run, checkpoint, state)
        run.directory.set_status(
            # With --allow-change, or finished with weights that are not finite, it has steps to do.
            finished=False,
            diverged=False,
            steps=run.settings.known_steps,
            precision=run.settings.precision,
            budget_seconds=run.settings.budget_seconds,
            fitted=run.fitted,
            **run.data.facts,
        )
    run.accelerator.wait_for_everyone()


def write_start(run: Run) -> None:
    """Write the recipe and the status of a new run, with what `nlpkit reproduce` compares."""
    run.directory.write_recipe(run.resolved)
    run.directory.set_status(
        nlpkit=__version__,
        torch=torch.__version__,
        **{name: version(name) for name in ("numpy", "tokenizers")},
        python=platform.python_version(),
        machine=find_processor(run.accelerator.device),
        source=run.part.source_weights,
        code=file_sha256(*sorted(Path(__file__).parents[1].rglob("*.py"))),
        threads=torch.get_num_threads(),
        processes=run.accelerator.num_processes,
        seed=run.resolved.recipe.seed,
        data=run.data.fingerprint,
        held_out_unigram_entropy=run.data.held_out_entropy(),
    )
    # Without held-out text it has no effect, of which the recipe is warned.
    if (order := run.resolved.recipe.eval.baseline) and run.data.valid is not None:
        from nlpkit.runs import baseline

        baseline.announce(run, order)


def describe_last(run: Path) -> str:
    """Return which checkpoint is left of a run that diverged, and what to try."""
    last = files.read_pointer(run, "latest")
    where = f"the last checkpoint is {last}" if last else "no checkpoint was saved yet"
    return f"{where}; try a lower train.lr or train.clip"
