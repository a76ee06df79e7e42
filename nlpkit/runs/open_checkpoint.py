"""Opens a run, a checkpoint, or a directory in the layout of `transformers` of a known family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlpkit.checkpoints import (
    any_layout,
    files,
    hf_model,
    integrity,
    objective_heads,
    prompt_layout,
)
from nlpkit.checkpoints.nearest import suggest_path
from nlpkit.checkpoints.run_directory import seed_runs
from nlpkit.contracts.objective import Objective
from nlpkit.disk import user_path
from nlpkit.errors import DivergedError, FileError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import soft_prompt
from nlpkit.models.formats.hf_format import vocabulary_size
from nlpkit.models.layers.head import TaskHead, pop_head
from nlpkit.models.meta import on_meta
from nlpkit.plural import number_of
from nlpkit.runs.run import ModelPart
from nlpkit.runs.saved_objective import load_objective, load_tokenizer
from nlpkit.train import machine, spinning


@dataclass(frozen=True)
class Opened:
    """A model in evaluation mode on its device, with its tokenizer and objective."""

    path: Path
    part: ModelPart
    model: Any
    tokenizer: Any  # None if the objective reads no text
    objective: Objective
    notes: JsonMapping  # the content of `nlpkit.json`; empty if there is none


def open_checkpoint(
    path: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    family: str | None = None,
    info: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Opened:
    """Return the model, tokenizer and objective of a checkpoint, or of a run.

    For a run, this is the best checkpoint or, if no evaluation chose one, the latest.

    Args:
        precision: of weights and products: fp32, bf16, or auto (fp32, except for 16-bit weights on
            a GPU).
        family: the family that reads the checkpoint; None: the one that the checkpoint names.
        info: is called with the checkpoint of a run that is opened.
        warn: is called with missing and unused tensors.

    Raises:
        FileError: a file is missing, damaged (its hash differs from the manifest), or does not fit.
        DivergedError: a weight is not finite.
        UsageError: the device does not exist.
    """
    target = machine.find_device(device)
    directory = find_checkpoint(user_path(path), info)
    integrity.verify(directory)
    settings, tensors = any_layout.read(directory, family, prompts=True)
    family = hf_model.find_family(settings, directory, family)
    loaded = hf_model.from_hf(family, directory, settings, tensors)
    part = ModelPart(family, loaded.config, None, directory)
    for line in loaded.warnings("set to 0"):
        warn(f"{directory}: {line}")
    _check_finite(directory, loaded.state)
    tokenizer = load_tokenizer(directory, family, loaded)
    state, part.rows = loaded.state, vocabulary_size(loaded.state, part.vocabulary) or None
    objective = load_objective(directory, family, loaded, tokenizer)
    machine.configure_allocator()
    if target.type == "cpu":
        spinning.start()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if precision == "auto" and target.type == "cuda":
        # That of the embeddings or, without embeddings, of the first tensor.
        stored = state[next(name for name in (*part.vocabulary, *state) if name in state)]
        dtype = torch.bfloat16 if stored.dtype.itemsize == 2 else torch.float32
    model = _make_model(part, state, loaded.head)
    _add_objective_heads(model, objective, directory)
    if (rows := prompt_layout.read_rows(directory)) is not None:
        soft_prompt.attach(model, rows)
        model.requires_grad_(False)
    model = model.to(device=target, dtype=dtype)
    notes = any_layout.read_notes(directory)
    return Opened(directory, part, model.eval(), tokenizer, objective, notes)


def find_checkpoint(path: Path, info: Callable[[str], None] = lambda _: None) -> Path:
    """Return `path` if it is a checkpoint, or the best or latest checkpoint of the run `path`.

    RUN/best and RUN/latest are the checkpoints of these names.

    Raises:
        FileError: `path` is neither.
    """
    if any_layout.is_checkpoint(path):
        return path.resolve()
    if found := files.find_named(path):
        return found
    run = path.parent if path.name == "checkpoints" else path
    if chosen := files.choose_checkpoint(run):
        info(f"{path}: its {chosen[1]} checkpoint, {chosen[0].name}")
        return chosen[0]
    if not path.exists():
        near = suggest_path(path) or "; give a checkpoint, or a run such as runs/NAME"
        raise FileError(f"{path}: no such directory{near}")
    if runs := seed_runs(path):
        names = ", ".join(str(each) for _, each in runs[:2])
        held = number_of(len(runs), "runs with different seeds")
        raise FileError(f"{path}: holds {held}; give one: {names} …")
    if not path.is_dir():
        raise FileError(f"{path}: not a directory; give the one that contains config.json")
    raise FileError(f"{path}: neither a checkpoint (no config.json) nor a run with checkpoints")


def _check_finite(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    if wrong := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
        raise DivergedError(
            f"{directory}: {len(wrong)} of {number_of(len(state), 'tensors')} "
            f"{'has' if len(wrong) == 1 else 'have'} values that are not finite "
            f"(the first: {wrong[0]}); the training diverged before it was saved; use an earlier "
            "checkpoint"
        )


def _make_model(part: ModelPart, state: JsonObject, task_head: TaskHead | None) -> nn.Module:
    """Return the model with the weights of `state`, also of the output layer if there is one."""
    taken = pop_head(state)
    # On `meta`, no time is needed for random weights, which would be replaced.
    with on_meta():
        model = part.module().Model(part.config, part.rows or 0, "auto")
    for name, tensor in model.state_dict().items():
        if name not in state:  # optional in this family
            state[name] = torch.zeros(tensor.shape)
    model.load_state_dict(state, assign=True)
    if task_head is not None:
        part.outputs = len(taken["weight"])
        model.head = task_head.new(part.config.state_size, part.outputs, 0.0)
        model.head.load_state_dict(taken, assign=True)
    return model.requires_grad_(False)


def _add_objective_heads(model: nn.Module, objective: Objective, directory: Path) -> None:
    """Give the model the layers of its objective."""
    heads = objective.heads()
    if not heads:
        return
    model.objective_heads = nn.ModuleDict(heads).requires_grad_(False)
    state = objective_heads.read(directory)
    own = {name.removeprefix(hf_model.OBJECTIVE_HEADS): tensor for name, tensor in state.items()}
    try:
        model.objective_heads.load_state_dict(own)
    except RuntimeError as error:
        raise FileError(
            f"{directory / objective_heads.FILE}: does not have the layers of the objective: "
            + " ".join(str(error).split("\n")[1:2]).strip()
        ) from error
