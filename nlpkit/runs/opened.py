"""Opens a run, a checkpoint, or a directory in the layout of `transformers` of a known family."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from nlpkit import registry
from nlpkit.checkpoints import (
    any_layout,
    files,
    hf_layout,
    objective_heads,
    preprocessor,
    tokenizer_files,
)
from nlpkit.checkpoints.family import family_of
from nlpkit.checkpoints.run_directory import seed_runs
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Extendable, Tokenizer
from nlpkit.data.lines import shown
from nlpkit.disk import file_sha256, user_path
from nlpkit.errors import DivergedError, FileError, UsageError
from nlpkit.models import families
from nlpkit.models.head import SEQUENCE, TaskHead, kind_of, taken_head
from nlpkit.models.meta import on_meta
from nlpkit.models.packed_weights import pack
from nlpkit.models.rows import vocabulary_size, without_padding
from nlpkit.objectives.several import members
from nlpkit.objectives.several.combined import combined
from nlpkit.plural import number_of
from nlpkit.recipe.fit import missing
from nlpkit.recipe.problems import in_words
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers._source_and_target import check_sources
from nlpkit.train import machine, spinning
from nlpkit.train.memory import available

# Files of the manifest that are not read and not checked here.
_TASKS = {
    SEQUENCE: "classification",
    "token_classification": "tagging",
    "question_answering": "question_answering",
    "multiple_choice": "multiple_choice",
    "image_classification": "image_classification",
}
_NOT_NEEDED = (files.OPTIMIZER_STATE, files.TRAINING)


@dataclass(frozen=True)
class Opened:
    """A model in evaluation mode on its device, with its tokenizer and objective."""

    path: Path
    part: ModelPart
    model: Any
    tokenizer: Any  # None if the objective reads no text
    objective: Objective
    notes: Mapping[str, Any]  # the content of `nlpkit.json`; empty if there is none


def open_checkpoint(
    path: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
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
    verify(directory)
    settings, tensors = any_layout.read(directory, family)
    family, _ = family_of(settings, directory, family)
    part = ModelPart(family, None, None, directory)
    loaded = hf_layout.converted(family, directory, settings, tensors)
    for line in loaded.warnings("set to 0"):
        warn(f"{directory}: {line}")
    part.config, state = loaded.config, loaded.state
    _check_finite(directory, state)
    notes = any_layout.read_notes(directory)
    home = any_layout.tokenizer_home(directory)
    tokenizer = tokenizer_files.load(home)[1] if part.vocabulary else None
    part.rows = vocabulary_size(state, part.vocabulary) or None
    if tokenizer is not None and part.is_padded(tokenizer.vocab_size):
        part.rows = tokenizer.vocab_size
        state = without_padding(state, part.vocabulary, part.rows)
    if tokenizer is not None and part.rows not in (None, tokenizer.vocab_size):
        raise FileError(
            f"{directory}: the model has {part.rows} tokens and its tokenizer has "
            f"{tokenizer.vocab_size}"
        )
    check_sources(directory, part.config, tokenizer)
    objective = objective_of(directory, notes, tokenizer, part, loaded.head)
    machine.configure_allocator()
    if target.type == "cpu":
        spinning.start()
    dtype = _precision(precision, _stored(state, part.vocabulary), target)
    model = _model(part, state, loaded.head, backend)
    _add_objective_heads(model, objective, directory)
    model = model.to(device=target, dtype=dtype)
    if target.type == "cpu":
        pack(model, available())
    return Opened(directory, part, model.eval(), tokenizer, objective, notes)


def find_checkpoint(path: Path, info: Callable[[str], None] = lambda _: None) -> Path:
    """Return `path` if it is a checkpoint, or the best or latest checkpoint of the run `path`.

    RUN/best and RUN/latest are the checkpoints of these names.

    Raises:
        FileError: `path` is neither.
    """
    if any_layout.is_checkpoint(path):
        return path.resolve()
    if found := files.named(path):
        return found
    run = path.parent if path.name == "checkpoints" else path
    if chosen := files.chosen(run):
        info(f"{path}: its {chosen[1]} checkpoint, {chosen[0].name}")
        return chosen[0]
    if not path.exists():
        raise FileError(f"{path}: no such directory; give a checkpoint, or a run such as runs/NAME")
    if runs := seed_runs(path):
        names = ", ".join(str(each) for _, each in runs[:2])
        held = number_of(len(runs), "runs with different seeds")
        raise FileError(f"{path}: holds {held}; give one: {names} …")
    if not path.is_dir():
        raise FileError(f"{path}: not a directory; give the one that contains config.json")
    raise FileError(f"{path}: neither a checkpoint (no config.json) nor a run with checkpoints")


def verify(directory: Path) -> None:
    """Raise `FileError` if a file does not match its hash in the manifest."""
    manifest = directory / files.MANIFEST
    if not manifest.is_file():  # not written by a run
        return
    try:
        named = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        for name, entry in named.items():
            target = directory / name
            if name in _NOT_NEEDED or not files.is_inside(name):
                continue
            if not target.is_file():
                raise FileError(f"{target}: is missing; {files.MANIFEST} names it")
            if file_sha256(target) != entry["sha256"]:
                raise FileError(f"{target}: has changed since it was written (its hash differs)")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{manifest}: cannot be read: {error}") from error


def _check_finite(directory: Path, state: Mapping[str, torch.Tensor]) -> None:
    wrong = [name for name, tensor in state.items() if not tensor.isfinite().all()]
    if wrong:
        raise DivergedError(
            f"{directory}: {len(wrong)} of {number_of(len(state), 'tensors')} "
            f"{'has' if len(wrong) == 1 else 'have'} values that are not finite "
            f"(the first: {wrong[0]}); the training diverged before it was saved; use an earlier "
            "checkpoint"
        )


def objective_of(
    directory: Path,
    notes: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    part: ModelPart,
    head: TaskHead | None = None,
) -> Any:
    """Return the objective that the notes name, bound to the model.

    Default: the task of the output layer `head`, or without one the family's objective.
    """
    named = notes.get("objective")
    source = f"{directory / hf_layout.NOTES}: objective"
    try:
        default = _TASKS.get(kind_of(part.module(), head))
        default = default or families.default_objective(part.family)
        if named is None and default is None:
            raise ValueError(f"none is named, and family {part.family} has no DEFAULT_OBJECTIVE")
        listed = named if isinstance(named, list) else [named or {"name": default}]
        weights = [float(each.get("weight", 1.0)) for each in listed]
        bound = [_bound(directory, each, named is None, tokenizer, part) for each in listed]
        return combined(bound, weights)
    except ValidationError as error:
        raise FileError(f"{source}.{in_words(error)}") from error
    except KeyError as error:
        raise FileError(f"{source}: {error} is missing") from error
    except (UsageError, ValueError, TypeError, AttributeError) as error:
        raise FileError(f"{source}: {error}") from error


def _bound(
    directory: Path,
    named: Mapping[str, Any],
    is_default: bool,
    tokenizer: Tokenizer | None,
    part: ModelPart,
) -> Any:
    """Return an objective for the model, with the settings in `named`."""
    settings = {key: value for key, value in named.items() if key != "weight"}
    name = settings.pop("name")
    for each in members.names(named):
        registry.check_named_by(directory / hf_layout.NOTES, each, "run nlpkit where it lies")
    module = registry.load("objectives", name)
    if is_default:
        settings = _fitting(module.Config, part.config) | _classes(module.Config, directory)
    else:
        settings = _with_earlier(module.Config, settings)
    config = module.Config.model_validate_json(json.dumps(settings))
    config = module.Objective.with_preprocessor(config, preprocessor.read(directory))
    if lacking := missing(module.Objective, part.config):
        raise ValueError(f"{name} needs {', '.join(lacking)}, which the model does not have")
    if isinstance(tokenizer, Extendable):
        named = module.Objective.special_tokens(part.config)
        if lacking := [token for token in named if tokenizer.special_id(token) is None]:
            raise ValueError(
                f"{name} needs the special tokens {shown(lacking)}, which the tokenizer does not "
                "have"
            )
    return module.Objective(config, tokenizer, part.config)


def _with_earlier(config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, of members too, with the earlier values of those that are missing."""
    settings = {**config.EARLIER, **settings}
    if isinstance(members := settings.get("of"), list):  # of a mixture
        settings["of"] = [
            _with_earlier(registry.load("objectives", member["name"]).Config, member)
            for member in members
        ]
    return settings


def _fitting(config: Any, model_config: Any) -> dict[str, Any]:
    """Return a smaller `max_length` if the model has fewer positions than the default, else {}."""
    limits = [getattr(model_config, n, None) for n in ("max_positions", "attention_length")]
    limit = min((one for one in limits if one is not None), default=None)
    field = config.model_fields.get("max_length")
    if limit is None or field is None or field.default <= limit:
        return {}
    return {"max_length": limit}


def _classes(config: Any, directory: Path) -> dict[str, Any]:
    """Return `labels` from `id2label` of a foreign checkpoint, if the objective has classes."""
    if "labels" not in config.model_fields or not (directory / "config.json").is_file():
        return {}
    names = hf_layout.read_settings(directory).get("id2label")
    if not isinstance(names, dict):
        return {}
    labels = [names[number] for number in sorted(names, key=int)]
    # Rows of published data often have the number of the class.
    is_clear = "choices" in config.model_fields and not any(
        str(each).isdecimal() for each in labels
    )
    return {"labels": labels, "choices": labels} if is_clear else {"labels": labels}


def _model(
    part: ModelPart, state: dict[str, Any], task_head: TaskHead | None, backend: str
) -> nn.Module:
    """Return the model with the weights of `state`, also of the output layer if there is one."""
    taken = taken_head(state)
    # On `meta`, no time is needed for random weights, which would be replaced.
    with on_meta():
        model = part.module().Model(part.config, part.rows or 0, backend)
    for name, tensor in model.state_dict().items():
        if name not in state:  # optional in this family
            state[name] = torch.zeros(tensor.shape)
    model.load_state_dict(state, assign=True)
    if task_head is not None:
        part.outputs = len(taken["weight"])
        model.head = task_head.new(part.config.state_size, part.outputs, 0.0)
        model.head.load_state_dict(taken, assign=True)
    return model.requires_grad_(False)


def _add_objective_heads(model: Any, objective: Any, directory: Path) -> None:
    """Give the model the layers of its objective.

    Raises:
        FileError: the checkpoint has not all of them, or of other sizes.
    """
    heads = objective.heads()
    if not heads:
        return
    model.objective_heads = nn.ModuleDict(heads).requires_grad_(False)
    state = objective_heads.read(directory)
    own = {name.removeprefix(objective_heads.PREFIX): tensor for name, tensor in state.items()}
    try:
        model.objective_heads.load_state_dict(own)
    except RuntimeError as error:
        raise FileError(
            f"{directory / objective_heads.FILE}: does not have the layers of the objective: "
            + " ".join(str(error).split("\n")[1:2]).strip()
        ) from error


def _stored(state: Mapping[str, torch.Tensor], tables: Sequence[str]) -> torch.dtype:
    """Return the dtype of the embeddings or, without embeddings, of the first tensor."""
    names = [name for name in (*tables, *state) if name in state]
    return state[names[0]].dtype


def _precision(requested: str, stored: torch.dtype, device: torch.device) -> torch.dtype:
    if requested == "auto":
        return torch.bfloat16 if stored.itemsize == 2 and device.type == "cuda" else torch.float32
    return torch.bfloat16 if requested == "bf16" else torch.float32
