"""Checks that family, attention and objectives of a recipe fit together, without torch.

The capabilities of families, which objectives require, are in `models/config.py`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from nlpkit import registry
from nlpkit.attention.contract import Choice, ComputedKind
from nlpkit.contracts.task import Task
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.objectives import mixture
from nlpkit.objectives.several import members
from nlpkit.recipe.places import Document, Path, Problem
from nlpkit.recipe.sections import Attention, Model, Objective

KINDS = "attention/kinds"
Misfit = tuple[Path, str]  # the setting, and why it does not fit


def problems(recipe: Any, document: Document) -> list[Problem]:
    """Return what does not fit, each with its place."""
    made = registry.load("objectives", recipe.objective[0].name).Objective
    found = _problems_of_model(recipe, document)
    if not found and recipe.eval.metrics and not issubclass(made, Task):
        path: Path = ("eval", "metrics")
        what = (
            f"objective {recipe.objective[0].name} is trained on running text, which has no "
            "answers to score; remove the setting"
        )
        found = [Problem.at(document.place(path), path, what)]
    return found


def _problems_of_model(recipe: Any, document: Document) -> list[Problem]:
    """Return what does not fit the model; [] if its sizes come from `init_from`."""
    if recipe.model is None:
        return []
    if recipe.model.family is None:
        path: Path = ("model", "family")
        what = f"missing (model family: {', '.join(registry.names('models'))})"
        return [] if recipe.init_from else [Problem.at(document.place(path), path, what)]
    config = recipe.model.config
    if not isinstance(config, ModelConfig):
        what = (
            f"Config of {recipe.model.family} must be derived from nlpkit.models.config.ModelConfig"
        )
        return [Problem.at(document.place(("model", "family")), ("model", "family"), what)]
    found = list(of_attention(recipe.attention, config, recipe.objective))
    if not found:
        config = with_attention(config, recipe.attention.choices)
        found = list(of_objectives(recipe.objective, recipe.model.family, config))
    if recipe.tokenizer is not None and recipe.tokenizer.sides is not None:
        found += of_tokenizers(recipe.objective, recipe.model.family, config)
    return [Problem.at(document.place(path), path, what) for path, what in found]


def with_attention(config: ModelConfig, choices: tuple[Choice, ...]) -> Any:
    """Return the settings of a model with these kinds of attention; if empty, unchanged."""
    return config.model_copy(update={"attention": choices}) if choices else config


def of_attention(
    section: Attention, config: ModelConfig, objectives: Sequence[Objective]
) -> Iterator[Misfit]:
    """Yield the kinds that a family cannot have, and a backend that nothing takes."""
    for number, choice in enumerate(section.choices):
        if reason := config.refuses_attention(choice):
            path: Path = ("attention", "layers", number) if section.layers else ("attention",)
            fitting = _fitting(config, classes(objectives))
            # If the kind is among them, its settings do not fit, and the reason says which.
            others = "" if choice.kind in fitting else _named(fitting)
            yield (*path, "kind"), f"{choice.kind} does not fit the model: {reason}{others}"
    if section.backend != "auto" and not config.kinds:
        yield ("attention", "backend"), "the model has no attention to compute; set it to auto"
    own = [c.kind for c in section.choices or config.kinds if isinstance(c.module, ComputedKind)]
    if own and section.backend != "auto":
        yield (
            ("attention", "backend"),
            f"kind {own[0]} computes itself and takes no backend; set it to auto",
        )


def of_tokenizers(
    objectives: Sequence[Objective], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield why sources and targets cannot have a tokenizer each."""
    path: Path = ("tokenizer", "source")
    if not hasattr(config, "source_vocab_size"):
        known = [n for n in registry.names("models") if _has_two_vocabularies(n)]
        yield (
            path,
            f"family {family} has one vocabulary for sources and targets; a vocabulary for each "
            f"have: {', '.join(known)}",
        )
    single = [o.name for o in objectives if not _takes_two_tokenizers(o.name)]
    if single:
        known = [n for n in registry.names("objectives") if _takes_two_tokenizers(n)]
        yield path, f"objective {single[0]} takes one tokenizer; two take: {', '.join(known)}"


def _has_two_vocabularies(family: str) -> bool:
    return "source_vocab_size" in registry.load("models", family).Config.model_fields


def _takes_two_tokenizers(objective: str) -> bool:
    made = registry.load("objectives", objective).Objective
    return made.two_tokenizers


def of_objectives(
    objectives: Sequence[Objective], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield the objectives that cannot train the model or cannot be combined."""
    given = {name for made in classes(objectives) for name in made.inputs}
    owners: dict[str, str] = {}  # name of a loss -> the earlier objective that has it
    for number, section in enumerate(objectives):
        path: Path = ("objective", number, "name") if len(objectives) > 1 else ("objective", "name")
        made = registry.load("objectives", section.name).Objective
        if number and not made.joins:
            yield (
                path,
                f"{section.name} makes whole examples and cannot follow {objectives[0].name}; "
                "name it first, or alone",
            )
        elif twice := [part for part in made.parts if part in owners]:
            yield (
                path,
                f"{section.name} has a loss called {twice[0]}, as {owners[twice[0]]} before it; "
                "remove one of them",
            )
        elif kinds := _of_kinds(section.name, made, config):
            yield from kinds
        elif lacking := missing(made, config):
            yield path, f"{section.name} needs {_needed(lacking, made, family, config)}"
        elif made.reads_text and not config.has_vocabulary:
            yield path, f"{section.name} reads text, and family {family} has no vocabulary"
        elif not number and config.has_vocabulary and not reads_text(objectives):
            yield (
                path,
                f"{section.name} reads no text, and family {family} has a vocabulary"
                f"{_suited(made, config)}",
            )
        elif not number and (unread := [name for name in config.inputs if name not in given]):
            yield (
                path,
                f"{section.name} does not give {', '.join(unread)}, which family {family} reads"
                f"{_suited(made, config)}",
            )
        elif made.reads_summary and config.summary_first and config.causal:
            (usual,) = {choice.kind for choice in config.default_attention}
            yield (
                path,
                f"{section.name} reads the state of the first token, which sees no other token "
                f"with attention {_kinds(config)}; set attention: {{kind: {usual}}}",
            )
        elif isinstance(section.config, mixture.Config):
            for of, what in _of_mixture(section.config, family, config):
                yield (*path[:-1], "of", of, "name"), what
        owners |= dict.fromkeys(made.parts, section.name)


def _of_kinds(name: str, objective: Any, config: ModelConfig) -> list[Misfit]:
    """Return the recipe's kinds of attention with which the objective does not train the family.

    Empty if other kinds would not be enough.
    """
    if missing(objective, config.model_copy(update={"attention": ()})):
        return []
    found: list[Misfit] = []
    for number, choice in enumerate(config.attention):
        if lacking := missing(objective, with_attention(config, (choice,))):
            layer: Path = ("layers", number) if len(config.attention) > 1 else ()
            needed = ", ".join(f"{n} ({CAPABILITIES[n]})" for n in lacking if n in CAPABILITIES)
            what = f"{choice.kind} is {config.kinds[number].visibility}, and {name} needs {needed}"
            what += _named(_fitting(config, [objective]))
            found.append((("attention", *layer, "kind"), what))
    return found


def _fitting(config: ModelConfig, objectives: Sequence[Any]) -> list[str]:
    """Return the kinds of attention with which these objectives train the model."""
    own = {choice.kind: choice for choice in config.default_attention}
    return [
        choice.kind
        for choice in (own.get(name) or Choice.of(name) for name in registry.names(KINDS))
        if not config.refuses_attention(choice)
        and not any(missing(each, with_attention(config, (choice,))) for each in objectives)
    ]


def _named(fitting: Sequence[str]) -> str:
    return f"; kinds that fit: {', '.join(fitting)}" if fitting else ""


def _of_mixture(
    mixed: mixture.Config, family: str, config: ModelConfig
) -> Iterator[tuple[int, str]]:
    """Yield the members that cannot be mixed or cannot train the model."""
    first = mixed.of[0]
    for number, member in enumerate(mixed.of):
        made = member.objective
        if isinstance(member.config, mixture.Config):
            yield number, f"{member.name} is a mixture itself; name its members here"
        elif issubclass(made, Task) or not made.reads_text:
            yield (
                number,
                f"{member.name} does not learn from running text, as the members of a mixture do",
            )
        elif lacking := missing(made, config):
            yield number, f"{member.name} needs {_needed(lacking, made, family, config)}"
        elif what := members.difference(first.objective, made):
            yield number, f"{first.label} and {member.label} {what}"


def classes(objectives: Sequence[Objective]) -> list[Any]:
    """Return the classes of the objectives; for a mixture, those of its members."""
    return [
        registry.load(part.FOLDER, part.name).Objective
        for section in objectives
        for part in (section.config.of if isinstance(section.config, mixture.Config) else [section])
    ]


def reads_text(objectives: Sequence[Objective]) -> bool:
    """Return whether an objective reads text, so that a tokenizer is needed."""
    return any(made.reads_text for made in classes(objectives))


def has_vocabulary(model: Model | None) -> bool | None:
    """Return whether the model reads tokens, or None where the recipe does not say."""
    return None if model is None else getattr(model.config, "has_vocabulary", None)


def missing(objective: Any, config: Any) -> list[str]:
    """Return the needs of the objective that the model's `Config` lacks or has as False.

    Who predicts text needs states that predict tokens, or a generator.
    """
    lacking = [name for name in objective.needs if getattr(config, name, False) is False]
    if objective.predicts_text and "generator" not in objective.needs:
        lacking += [] if getattr(config, "predicts_tokens", True) else ["predicts_tokens"]
    return lacking


def trains(objective: Any, config: ModelConfig) -> bool:
    """Return whether an objective alone trains a model with these settings."""
    if missing(objective, config) or objective.reads_text != config.has_vocabulary:
        return False
    return {*config.inputs} <= {*objective.inputs}


def _needed(lacking: Sequence[str], objective: Any, family: str, config: ModelConfig) -> str:
    wanted = [f"{n} ({CAPABILITIES[n]})" if n in CAPABILITIES else f"model.{n}" for n in lacking]
    how = f" with attention {_kinds(config)}" if config.attention else ""
    remark = _suited(objective, config)
    for name, value in _other_settings(objective, config):
        how += f" with {name} {json.dumps(getattr(config, name))}"
        remark = f"; with {name} {json.dumps(value)} it does"
    return f"{', '.join(wanted)}, which family {family}{how} does not have{remark}"


def _kinds(config: ModelConfig) -> str:
    return ", ".join(dict.fromkeys(choice.kind for choice in config.attention))


def families_for(objective: Any) -> list[str]:
    """Return the families that the objective alone trains, with their default settings."""
    return [
        name
        for name in registry.names("models")
        if trains(objective, registry.load("models", name).Config())
    ]


def families_with_setting(objective: Any) -> dict[str, list[str]]:
    """Return the families that the objective trains with one other setting, as `--set` takes it.

    That is a kind of attention or a setting of the model. These are not in `families_for`.
    """
    found = {}
    for name in registry.names("models"):
        config = registry.load("models", name).Config()
        settings = [
            f"attention.kind={kind}"
            for kind in _fitting(config, [objective])
            if trains(objective, with_attention(config, (Choice.of(kind),)))
        ] or [f"model.{name}={value}" for name, value in _other_settings(objective, config)]
        if settings and not trains(objective, config):
            found[name] = settings
    return found


def _other_settings(objective: Any, config: ModelConfig) -> Iterator[tuple[str, Any]]:
    """Yield settings of the model with which the objective trains it, with their values."""
    for name in config.capability_settings:
        field = type(config).model_fields[name]
        others = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        for value in (field.default, *others):
            if trains(objective, config.model_copy(update={name: value})):
                yield name, value
                break


def _suited(objective: Any, config: ModelConfig) -> str:
    """Return a remark that names the families that the objective trains, or a kind of attention."""
    if families := families_for(objective):
        return f"; it trains: {', '.join(families)}"
    fitting = _fitting(config, [objective])
    return f"; set attention: {{kind: {fitting[0]}}}" if fitting else ""
