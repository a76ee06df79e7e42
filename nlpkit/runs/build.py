"""Builds the parts of a recipe: tokenizer, corpora, objective, examples, model."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlpkit.checkpoints import hf_layout, hf_writing
from nlpkit.checkpoints.run_directory import DATA_FILES
from nlpkit.contracts.objective import PREPROCESSOR
from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data import store
from nlpkit.data.cache import cache_directory, content_hash
from nlpkit.data.corpus import Corpus
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.items import TaskDataset, build_items, read_rows
from nlpkit.data.lines import name_first
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.data.settings import Part
from nlpkit.data.store import Callbacks
from nlpkit.disk import write_json
from nlpkit.errors import DataError, UsageError
from nlpkit.models.config import ModelConfig
from nlpkit.models.layers.head import pop_head
from nlpkit.plural import number_of
from nlpkit.recipe import Recipe, Resolved, fit
from nlpkit.runs import checks
from nlpkit.runs.run import Data, ModelPart, Training
from nlpkit.runs.vocabulary import TrainingText, build_tokenizer
from nlpkit.train.schedule import ResolvedTraining


def model_part(
    resolved: Resolved,
    run_path: Path | None = None,
    resumed: Path | None = None,
    info: Callable[[str], None] = lambda _: None,
) -> ModelPart:
    """Return the family and sizes of the model, from the section `model` or from `init_from`.

    If the run has checkpoints, or is resumed from the checkpoint `resumed`, the weights of
    `init_from` are not read. `info` is called with the name of the checkpoint that is used.

    Raises:
        FileError: a file of `init_from` is missing, damaged, or does not fit.
    """
    recipe = resolved.recipe
    if recipe.init_from is not None:
        from nlpkit.runs import init_from

        return init_from.model_part(resolved, run_path, resumed, info)
    if recipe.init_missing:
        raise UsageError("init_missing: needs init_from; remove it, or set init_from")
    assert recipe.model is not None  # checked by the recipe
    assert recipe.model.family is not None
    config = for_objective(recipe, recipe.model.config)
    config = fit.with_attention(config, recipe.attention.choices)
    return ModelPart(recipe.model.family, config, None, resumed=resumed)


def for_objective(recipe: Recipe, config: ModelConfig) -> ModelConfig:
    """Return the settings of the part of a model that the recipe's objective trains."""
    made = recipe.objective[0].objective
    return config.for_task() if issubclass(made, Task) else config


def build_training(
    resolved: Resolved, part: ModelPart, data: Data, settings: ResolvedTraining
) -> Training:
    """Return the model and the objective as one module, on the CPU."""
    torch.manual_seed(resolved.recipe.seed)
    model: Any = build_model(part, data.vocab_size, resolved.recipe.attention.backend)
    if settings.gradient_checkpointing:
        from nlpkit.train import recompute

        recompute.apply(model)
    if settings.z_loss:  # the objective predicts tokens: `recipe.alternatives`
        model.z_loss = settings.z_loss
    return Training(model, data.objective)


def build_model(part: ModelPart, vocab_size: int, backend: str) -> nn.Module:
    """Return the model, with random weights (from torch's generator) or those of `init_from`."""
    model = part.module().Model(part.config, vocab_size if part.vocabulary else 0, backend)
    # An incomplete table of names must cause an error now, not at the first checkpoint.
    weights = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    hf_writing.to_hf(part.family, part.config, weights)
    old: Mapping[str, torch.Tensor] = {}
    if part.start is not None:
        old, part.start = part.start, None
        from nlpkit.runs import init_from

        init_from.load_weights(part, model, old, vocab_size)
    if part.outputs:
        head = part.head.add(model, part.config.state_size, part.outputs, part.head_dropout)
        if kept := pop_head(dict(old)):  # that of another task is dropped by `compare_heads`
            head.load_state_dict(kept)
    if part.lora is not None:
        from nlpkit.models import lora

        lora.adapt(model, part.lora, part.targets)
    if part.prompt is not None:
        part.prompt.add(model)
    if part.objective_heads is not None and (heads := part.objective_heads()):
        from nlpkit.checkpoints import objective_heads

        objective_heads.add(model, heads, old)  # after what freezes what is there
    return model


def build_data(resolved: Resolved, part: ModelPart, run_path: Path, callbacks: Callbacks) -> Data:
    """Return the objective and the tokenized text, from the cache if possible.

    Raises:
        DataError: the text is malformed, or there is no example.
        UsageError: settings contradict each other.
    """
    if any(made.frozen for made in fit.classes(resolved.recipe.objective)):
        from nlpkit.runs import frozen

        part.frozen = frozen.find(resolved)
        resolved = frozen.named(resolved, part.frozen)
    config = resolved.recipe.data
    cache = cache_directory(config.cache, run_path / "cache", callbacks.note)
    inputs = _resolve_files(resolved, cache, callbacks)
    train_part: Part = "train" if config.valid_fraction else "all"
    if part.source is not None:  # before the tokenizer gets the objective's special tokens
        checks.check_objective(resolved, part, callbacks.warn)
    text = TrainingText(resolved, inputs[0], train_part, cache, callbacks)
    tokenizer = build_tokenizer(text, part, run_path)
    if tokenizer is not None and part.config.setting("padding_idx") is not None:
        checks.check_padding(resolved, part, tokenizer, run_path)
    objective = bind_objective(resolved, tokenizer, part, inputs[0], train_part)
    if part.new_head:
        callbacks.note(part.new_head)

    def build_part(inputs: list[Input], which: Part) -> Corpus | TaskDataset:
        if isinstance(objective, Task):
            return build_items(inputs, config, objective, part=which, callbacks=callbacks)
        assert tokenizer is not None  # an objective without one is a task
        encoding = store.Encoding(tokenizer, objective.drop_unknown, objective.token_flags)
        return store.build_corpus(
            inputs, config, encoding, cache_dir=cache, part=which, callbacks=callbacks,
            count_words=bool(resolved.recipe.train.words or resolved.recipe.train.save_at),
        )  # fmt: skip

    train, seed = build_part(inputs[0], train_part), resolved.recipe.seed
    if isinstance(train, Corpus):
        objective.read_counts(train.histogram)
    examples = _not_empty("data.train", Examples(train, objective, seed))
    valid = held_out = None
    if inputs[1] or config.valid_fraction:
        valid = build_part(inputs[1] or inputs[0], "valid" if config.valid_fraction else "all")
        held_out = _not_empty("data.valid", Examples(valid, objective, seed, HELD_OUT))
    files: dict[str, Sequence[Input]] = {"train": inputs[0], "valid": inputs[1]}
    data = Data(tokenizer, objective, train, valid, examples, held_out, files)
    if resolved.recipe.objective[0].lengths:
        from nlpkit.runs import phased

        data.by_length = phased.make_examples(resolved, part, data)
    return data


def _resolve_files(
    resolved: Resolved, cache: Path, callbacks: Callbacks
) -> tuple[list[Input], list[Input]]:
    """Return the files of `data.train` and of `data.valid`; note those that are in both."""
    inputs = find_inputs(resolved.recipe.data, resolved.base, cache, callbacks.should_stop)
    for note in (note for part in inputs for entry in part for note in entry.notes):
        callbacks.note(f"data: {note}")
    trained, held_out = (
        {os.path.realpath(file.path): file.name for entry in part for file in entry.files}
        for part in inputs
    )
    if both := [name for path, name in held_out.items() if path in trained]:
        callbacks.note(
            f"data.valid: {name_first(both)}: also in data.train; the held-out loss is not that of "
            "unseen text"
        )
    return inputs


def _not_empty(name: str, examples: Examples) -> Examples:
    """Return the examples; raise `DataError` if there is none."""
    if not len(examples):
        raise DataError(
            f"{name}: {number_of(len(examples.corpus), 'documents give')} no example; left out: "
            + ", ".join(f"{n:,} {reason}" for reason, n in examples.spans.dropped.items())
        )
    return examples


def bind_objective(
    resolved: Resolved,
    tokenizer: Tokenizer | None,
    part: ModelPart,
    inputs: Sequence[Input] = (),
    which: Part = "all",
) -> Any:
    """Return the recipe's objective, checked against the model.

    For a task, missing settings such as the labels are read from the training rows in `inputs`, and
    the output layer is set in `part`.

    Raises:
        UsageError: the model lacks something that the objective needs, or sizes differ.
    """
    recipe = resolved.recipe
    made: list[Any] = [each.objective for each in recipe.objective]
    settings = [each.config for each in recipe.objective]
    if part.source:
        settings[0] = _with_preprocessor(made[0], settings[0], part.source)
    if issubclass(made[0], Task):
        rows = read_rows(inputs, recipe.data, made[0].named_columns(settings[0]), Counts(), which)
        settings[0] = made[0].complete(settings[0], rows)
    bound: list[Any] = []
    try:
        bound += (each(of, tokenizer, part.config) for each, of in zip(made, settings, strict=True))
        objective: Any = bound[0]
        if len(bound) > 1:
            from nlpkit.objectives.several.combined import combine

            objective = combine(bound, [each.weight for each in recipe.objective])
    except ValueError as error:
        at = f"objective.{len(bound)}." if len(made) > 1 else "objective."
        said = str(error).replace("objective.", at, 1)
        raise UsageError(resolved.document.locate(said)) from error
    if recipe.eval.metrics is not None:
        objective.metrics = tuple(recipe.eval.metrics)
    part.objective_heads = objective.heads
    if isinstance(objective, Task) or recipe.train.best_by != "loss":
        checks.check_training(resolved, objective)
    if recipe.train.tune == "prompt":
        from nlpkit.runs import soft_prompts

        part.prompt = soft_prompts.find(resolved, objective, part)
    if isinstance(objective, Task):
        _set_head(resolved, part, objective)
    return objective


def _set_head(resolved: Resolved, part: ModelPart, objective: Task) -> None:
    part.outputs, part.head_dropout = objective.outputs, objective.dropout
    part.head_kind = objective.head_kind
    if part.source:
        from nlpkit.runs import init_from

        init_from.compare_heads(part, objective_notes(resolved, objective))


def _with_preprocessor(objective: Any, settings: Any, source: Path) -> Any:
    """Return the settings, with those of a checkpoint's preprocessor that are not set."""
    found = hf_layout.read_if_there(source / PREPROCESSOR)
    try:
        return objective.with_preprocessor(settings, found)
    except ValueError as error:
        raise UsageError(f"{source}/{PREPROCESSOR}: {error}") from error


def objective_notes(resolved: Resolved, objective: Any) -> Any:
    """Return name and settings of the objective for `nlpkit.json`; a list for several."""
    sections = resolved.recipe.objective
    notes = [
        {"name": section.name, **each.config.model_dump(mode="json")}
        for section, each in zip(sections, objective.objectives or (objective,), strict=True)
    ]
    if len(notes) == 1:
        return notes[0]
    return [n | {"weight": each.weight} for n, each in zip(notes, sections, strict=True)]


def record_files(
    run: Path, inputs: Mapping[str, Sequence[Input]], stop: Callable[[], None]
) -> None:
    """Write `data_files.json`, from which `nlpkit eval` finds the held-out text of the run."""
    files = {
        name: [
            # A pair of parallel files gives two.
            [_entry(each, stop) for file in source.files for each in file.parts]
            for source in sources
        ]
        for name, sources in inputs.items()
    }
    write_json(run / DATA_FILES, {"directory": str(run.absolute()), **files})


def _entry(file: TextFile, stop: Callable[[], None]) -> dict[str, str]:
    path = os.path.abspath(file.path)
    sha256 = content_hash(dataclasses.replace(file, second=None), stop)
    return {"name": file.name, "path": path, "format": file.format, "sha256": sha256}
