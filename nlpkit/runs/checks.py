"""Checks whether the settings of a recipe fit together, before data is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nlpkit import attention, registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.checkpoints import files
from nlpkit.contracts.request import Heads, Layout
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import RecipeError, Unsupported, UsageError
from nlpkit.recipe import COMMAND_LINE, Resolved, fit, list_warnings
from nlpkit.recipe.places import dotted
from nlpkit.runs.run import ModelPart


def check_objective(resolved: Resolved, part: ModelPart, warn: Callable[[str], None]) -> None:
    """Raise `UsageError` if the model of `init_from` does not fit an objective.

    What has no effect with this model is warned of.
    """
    for path, problem in fit.check_objectives(resolved.recipe.objective, part.family, part.config):
        raise UsageError(f"{dotted(path)}: {problem}{_remedy(resolved, part)}")
    recipe, document = resolved.recipe, resolved.document
    unread = part.config.unread(part.config, fit.classes(recipe.objective))
    rates = recipe.model.config if recipe.model and recipe.model.family is None else {}
    of_model = [f"model.{name}: has no effect {unread[name]}" for name in rates if name in unread]
    for line in (*list_warnings(recipe, document, part.config), *map(document.locate, of_model)):
        if line not in resolved.warnings:
            warn(line)


def check_backend(resolved: Resolved, part: ModelPart, device: torch.device) -> None:
    """Raise `RecipeError` if `attention.backend` cannot train the model on this device.

    Data need not be read for this. A precision that is not chosen yet counts as bf16, for which
    all backends are made.
    """
    recipe, config = resolved.recipe, part.config
    if not config.kinds:
        return
    heads = Heads(
        config.num_heads,
        config.width_per_head,
        torch.float32 if recipe.train.precision == "fp32" else torch.bfloat16,
        training=True,
        dropout=config.dropout_of_attention,
        backend=recipe.attention.backend,
    )
    try:
        for choice in dict.fromkeys(config.kinds):
            attention.check_backend(choice, heads, device)
        if config.can("encodes_source"):
            one, keys = Layout([1], device), Layout([1], device)
            attention.prepare(AttentionChoice.of("full"), heads, one, keys=keys)
    except Unsupported as error:
        setting = "attention.backend"
        origin = resolved.origin[setting]
        where = f"--set {setting}" if origin == COMMAND_LINE else f"{origin}: {setting}"
        raise RecipeError([f"{where}: {error}; auto chooses one that can"]) from error


def check_optimizer(resolved: Resolved, processes: int) -> None:
    """Raise `UsageError` if FSDP shards parameters that `train.optimizer` needs whole."""
    from nlpkit.train.processes import is_sharded

    optimizer = resolved.recipe.train.optimizer
    if is_sharded(processes) and not optimizer.module.SHARDED:
        folder = optimizer.FOLDER
        able = [n for n in registry.names(folder) if registry.load(folder, n).SHARDED]
        raise UsageError(
            f"train.optimizer: {optimizer.name} needs whole parameters, and FSDP shards them; "
            f"start the processes without FSDP, or take one of {', '.join(able)}"
        )


def check_padding(
    resolved: Resolved, part: ModelPart, tokenizer: Tokenizer, run_path: Path
) -> None:
    """Raise `UsageError` if `padding_idx` of a new model is not that of the tokenizer.

    RoBERTa's positions do not count the token of this id. A model that is there keeps its own.
    """
    begun = part.resumed is not None or files.list_directories(run_path)
    index, padding = part.config.padding_idx, tokenizer.pad_id
    is_free = padding is None and index >= tokenizer.vocab_size
    if begun or part.source is not None or index == padding or is_free:
        return
    token = tokenizer.token(index) if index < tokenizer.vocab_size else "no token"
    what = f"model.padding_idx: {index} is the id of {token}, and "
    if padding is None:
        what += "the tokenizer has no padding token; choose one that has, such as kind bpe"
    else:
        what += f"{padding} is that of the padding token; set it to {padding}"
    raise UsageError(resolved.document.locate(what))


def _remedy(resolved: Resolved, part: ModelPart) -> str:
    """Return how to add a part of the model that an objective needs and `init_from` lacks."""
    needs = {name for each in resolved.recipe.objective for name in each.objective.needs}
    folders = part.module().FORMAT.folders
    lacking = [name for name in folders if name in needs and not folders[name].present(part.config)]
    if not lacking:
        return ""
    return (
        f"; {part.source} has none; to initialize one, name it: init_missing: "
        f"[{', '.join(lacking)}]"
    )


def check_training(resolved: Resolved, objective: Any) -> None:
    """Raise `UsageError` if the objective does not support a setting of `train` or `eval`."""
    settings, name = resolved.recipe.train, resolved.recipe.objective[0].name
    if (settings.words or settings.save_at) and isinstance(objective, Task):
        setting = "words" if settings.words else "save_at"
        what = f"train.{setting}: objective {name} reads rows; words are counted of running text"
        raise UsageError(resolved.document.locate(what))
    predicts = isinstance(objective, Task) and type(objective).predict is not Task.predict
    metrics = objective.metrics if predicts else ()  # other scores need generated text
    judged = ("pairs",) if resolved.recipe.eval.pairs else ()
    figures = ("loss", *metrics, *objective.scores, *judged)
    if settings.best_by not in figures:
        what = f"train.best_by: objective {name} has no {settings.best_by} during training"
        what += f"{registry.suggest(settings.best_by, figures)}; it has {', '.join(figures)}"
        raise UsageError(resolved.document.locate(what))
    if not predicts:
        return
    from nlpkit.score import named

    if settings.best_by in metrics and named.lower_is_better(settings.best_by):
        what = f"train.best_by: {settings.best_by} is an error rate, but the best score is the "
        raise UsageError(resolved.document.locate(what + "highest; use loss or another score"))
    answers = objective.config.setting("labels") or ["0", "1"]
    for name in objective.metrics:
        if problem := named.explain_unreadable(name, answers):
            raise UsageError(f"eval.metrics: {problem}")
