"""Builds the parts of a recipe: tokenizer, corpora, objective, examples, model.

Used by `pretrain` and by `nlpkit plan`.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlpkit import registry
from nlpkit.checkpoints import any_layout, files, hf_layout
from nlpkit.data import corpus, store
from nlpkit.data.cache import cache_directory
from nlpkit.data.items import build_items, read_rows
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.data.store import Callbacks
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.models import families, lora
from nlpkit.models.config import ModelConfig
from nlpkit.models.head import taken_head
from nlpkit.models.rows import resize_embeddings, vocabulary_size
from nlpkit.objectives._combined import combined
from nlpkit.objectives._task import Task
from nlpkit.recipe import Recipe, Resolved, fit
from nlpkit.recipe.places import dotted
from nlpkit.runs import checks
from nlpkit.runs.parts import Data, ModelPart
from nlpkit.runs.vocabulary import build_tokenizer


def model_part(
    resolved: Resolved, run_path: Path | None = None, resumed: Path | None = None
) -> ModelPart:
    """Return the family and sizes of the model, from the section `model` or from `init_from`.

    The weights of `init_from` are not read if the run has checkpoints, or is resumed from the
    checkpoint `resumed`: these have all sizes and weights.
    """
    recipe = resolved.recipe
    if recipe.init_from is None:
        if recipe.init_missing:
            raise UsageError("init_missing: needs init_from; remove it, or set init_from")
        assert recipe.model is not None  # the recipe's own check
        config = fit.with_attention(recipe.model.config, recipe.attention.choices)
        return ModelPart(recipe.model.family, config, None)
    own = base = None
    if recipe.lora is not None:  # a checkpoint of adapters names its base
        saved = [c.path for c in files.list_checkpoints(run_path)] if run_path else []
        newest = resumed or (saved[0] if saved else None)
        base = any_layout.base(newest) if newest else None
    elif resumed is not None:
        own = resumed, hf_layout.read(resumed)
    elif run_path is not None:
        own = _own_checkpoint(run_path)
    directory = own[0] if own else base or _start(resolved.path(recipe.init_from))
    asked = _family_of_recipe(recipe, directory)
    settings, tensors = own[1] if own else any_layout.read(directory, asked)
    family, _ = hf_layout.family_of(settings, directory, asked)
    part = ModelPart(family, None, None, directory)
    loaded = _loaded(resolved, family, directory, settings, tensors)
    part.config, part.warnings = (
        loaded.config,
        loaded.warnings("and drawn afresh" if recipe.lora is None else "and taken as 0"),
    )
    part.start = None if own else loaded.state
    part.rows = vocabulary_size(loaded.state, part.vocabulary) or None
    if recipe.model is not None and recipe.model.config != _plain(part.config):
        differ = [k for k, v in part.config if getattr(recipe.model.config, k, None) != v]
        raise UsageError(
            f"init_from: {directory} has other {', '.join(differ)} than the section model; "
            "remove the section"
        )
    for path, what in fit.of_attention(recipe.attention, part.config):
        raise UsageError(f"{dotted(path)}: {what}")
    part.config = fit.with_attention(part.config, recipe.attention.choices)
    if recipe.lora is not None:
        part.lora = recipe.lora
        targets = lora.targeted(recipe.lora, part.module(), part.config)
        part.targets = {k: v for k, v in targets.items() if f"{k}.weight" in loaded.state}
        part.base_hash = any_layout.base_hash(directory)
    return part


def _plain(config: ModelConfig) -> ModelConfig:
    """Return the config without attention settings, as in the section `model`."""
    return config.model_copy(update={"attention": ()})


def _family_of_recipe(recipe: Recipe, directory: Path) -> str | None:
    """Return the family in the section `model`, or None if there is no such section.

    Raises:
        UsageError: the `model_type` of the checkpoint is that of another family.
    """
    if recipe.model is None:
        return None
    family = recipe.model.family
    if (directory / "config.json").is_file():
        ours, theirs = (
            families.load(family).MODEL_TYPE,
            hf_layout.model_type_of(hf_layout.read_settings(directory)),
        )
        if ours != theirs:
            raise UsageError(
                f"init_from: {directory} has model_type {theirs}, and family {family} of the "
                f"section model {ours}; remove the section"
            )
    return family


def _loaded(
    resolved: Resolved,
    family: str,
    directory: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
) -> hf_layout.Loaded:
    """Return the weights of `init_from`; those that `init_missing` names may be missing."""
    recipe = resolved.recipe
    allowed = recipe.init_missing if recipe.lora is None else ()
    try:
        return hf_layout.converted(family, directory, settings, tensors, allow_missing=allowed)
    except hf_layout.MissingTensors as error:
        remedy = f"to initialize such tensors, name them: init_missing: [{error.example}]"
        if recipe.lora is not None:
            remedy = "adapters are saved without such tensors; train the whole model first"
        raise FileError(f"{error}; {remedy}") from error


def _own_checkpoint(run_path: Path) -> tuple[Path, tuple[dict[str, Any], dict[str, Any]]] | None:
    """Return the run's newest readable checkpoint; if there is none, `resume` reports it."""
    for found in files.list_checkpoints(run_path):
        with contextlib.suppress(FileError):
            return found.path, hf_layout.read(found.path)
    return None


def _start(directory: Path) -> Path:
    """Return the checkpoint of `init_from`, resolved: `latest` may change while it is read."""
    if not any_layout.is_checkpoint(directory) and files.read_pointer(directory, "latest"):
        raise UsageError(
            f"init_from: {directory} is a run; name its checkpoint: {directory}/checkpoints/latest"
        )
    return directory.resolve()


def build_model(part: ModelPart, vocab_size: int, backend: str) -> nn.Module:
    """Return the model, with random weights (from torch's generator) or those of `init_from`.

    Embeddings of tokens that `init_from` does not have are random: see `models/rows.py`.
    """
    model = part.module().Model(part.config, vocab_size if part.vocabulary else 0, backend)
    # An incomplete table of names must fail now, not at the first checkpoint.
    weights = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    hf_layout.layout(part.family, part.config, weights)
    old: dict[str, torch.Tensor] = {}
    if part.start is not None:
        state, part.start = dict(part.start), None
        old = taken_head(state)
        resized = resize_embeddings(state, part.vocabulary, vocab_size)
        # Missing tensors are random. With LoRA they are 0, as when the checkpoint is opened,
        # because they are not saved.
        drawn = model.state_dict()
        if part.lora is not None:
            drawn = {name: torch.zeros_like(tensor) for name, tensor in drawn.items()}
        model.load_state_dict(drawn | resized)
    if part.outputs:
        model.head = part.new_head()
        # The output layer is kept only if the task is the same.
        if old and part.same_task:
            model.head.load_state_dict(old)
    if part.lora is not None:
        lora.adapt(model, part.lora, part.targets)
    if part.prompt_rows is not None:
        _train_prompt_only(model, *part.prompt_rows)
    return model


def _train_prompt_only(model: Any, start: int, stop: int) -> None:
    """Freeze the model except rows `start:stop` of its soft prompts (Lester et al. 2021)."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.prompt_embedding)
    ours = torch.zeros(len(model.prompt_embedding), 1)
    ours[start:stop] = 1.0
    # Without decay, Adam does not change rows whose gradient is always 0.
    model.prompt_embedding.register_hook(lambda gradient: gradient * ours.to(gradient.device))


def build_data(resolved: Resolved, part: ModelPart, run_path: Path, callbacks: Callbacks) -> Data:
    """Return the tokenized text, from the cache if it is there, with the objective.

    Raises:
        DataError: the text is malformed, or gives no example.
        UsageError: settings do not fit together.
    """
    config = resolved.recipe.data
    cache = cache_directory(config.cache, run_path / "cache", callbacks.note)
    train_inputs, valid_inputs = corpus.resolve(config, resolved.base, cache, callbacks.should_stop)
    held_out_share = bool(config.valid_fraction)
    train_part: Any = "train" if held_out_share else "all"
    # Must come before the tokenizer, which needs the objective's special tokens.
    checks.validated_objective(resolved, part)
    tokenizer = build_tokenizer(
        resolved, part, train_inputs, train_part, run_path, cache, callbacks
    )
    objective = bind_objective(resolved, tokenizer, part, train_inputs, train_part)

    def build(inputs: Any, which: Any) -> Any:
        if isinstance(objective, Task):
            return build_items(
                inputs, config, objective, cache_dir=cache, part=which, callbacks=callbacks
            )
        return store.build_corpus(
            inputs,
            config,
            tokenizer,
            drop_unknown=objective.drop_unknown,
            cache_dir=cache,
            part=which,
            marks=objective.marks,
            callbacks=callbacks,
        )

    train = build(train_inputs, train_part)
    valid = None
    if valid_inputs or held_out_share:
        valid = build(valid_inputs or train_inputs, "valid" if held_out_share else "all")
    seed = resolved.recipe.seed
    examples = Examples(train, objective, seed)
    held_out = Examples(valid, objective, seed, HELD_OUT) if valid else None
    for name, made in (("data.train", examples), ("data.valid", held_out)):
        if made is not None and not len(made):
            raise DataError(
                f"{name}: {len(made.corpus):,} documents give no example; left out: "
                + ", ".join(f"{n:,} {what}" for what, n in made.spans.dropped.items())
            )
    return Data(tokenizer, objective, train, valid, examples, held_out)


def bind_objective(
    resolved: Resolved,
    tokenizer: Any,
    part: ModelPart,
    inputs: Sequence[corpus.Input] = (),
    which: corpus.Part = "all",
) -> Any:
    """Return the recipe's objective, checked against the model.

    A task completes its settings from the training rows in `inputs`, for example its labels, and
    sets the output layer in `part`.

    Raises:
        UsageError: the objective needs something that the model does not have, or sizes differ.
    """
    first, *others = resolved.recipe.objective
    objective_class = checks.validated_objective(resolved, part)
    settings = first.config
    if issubclass(objective_class, Task):
        # Only the task knows which columns it reads.
        columns = objective_class.named_columns(settings)
        rows = read_rows(inputs, resolved.recipe.data, columns, corpus.Counts(), which)
        settings = objective_class.complete(settings, rows)
    try:
        objective = objective_class(settings, tokenizer, part.config)
        if others:
            joined = [
                registry.load("objectives", each.name).Objective(
                    each.config, tokenizer, part.config
                )
                for each in others
            ]
            weights = [each.weight for each in resolved.recipe.objective]
            objective = combined([objective, *joined], weights)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if resolved.recipe.eval.metrics is not None:
        objective.metrics = tuple(resolved.recipe.eval.metrics)
    part.prompt_rows = checks.check_training(resolved, objective)
    if isinstance(objective, Task):
        part.outputs, part.head_dropout = objective.outputs, objective.dropout
        notes = any_layout.read_notes(part.source) if part.source else {}
        part.same_task = notes.get("objective") == objective_notes(resolved, objective)
    return objective


def objective_notes(resolved: Resolved, objective: Any) -> Any:
    """Return name and settings of the objective, as in `nlpkit.json`; for a list, of each."""
    sections = resolved.recipe.objective
    bound = getattr(objective, "objectives", (objective,))
    notes = [
        {"name": section.name, **each.config.model_dump(mode="json")}
        for section, each in zip(sections, bound, strict=True)
    ]
    if len(notes) == 1:
        return notes[0]
    return [
        note | {"weight": section.weight} for note, section in zip(notes, sections, strict=True)
    ]
