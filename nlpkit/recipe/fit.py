"""Checks that family, attention and objectives of a recipe fit together, without torch.

The capabilities of families, which objectives require, are in `models/config.py`. What would fit
instead is looked for, in `recipe/alternatives`, only for a message.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.objective import Objective as ObjectiveClass
from nlpkit.contracts.task import Task
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.part import Part
from nlpkit.recipe.places import Document, Path, Problem
from nlpkit.recipe.sections import Attention, Model, Objective

if TYPE_CHECKING:
    from nlpkit.recipe.settings import Recipe

Misfit = tuple[Path, str]  # the setting, and why it does not fit


def check(recipe: "Recipe", document: Document) -> list[Problem]:
    """Return what does not fit, each with its place; sizes from `init_from` are checked later."""
    found = [*_check_model(recipe)] or [*_check_metrics(recipe)]
    return [Problem.at(document.place(path), path, what) for path, what in found]


def _check_model(recipe: "Recipe") -> Iterator[Misfit]:
    path = ("model", "family")
    if recipe.model is None:
        return
    if recipe.model.family is None:
        if recipe.init_from is None:
            yield path, f"missing (model family: {', '.join(registry.names('models'))})"
        return
    family, config = recipe.model.family, recipe.model.config
    if not isinstance(config, ModelConfig):
        yield path, f"Config of {family} must be derived from nlpkit.models.config.ModelConfig"
        return
    found = [*check_attention(recipe.attention, config, recipe.objective)]
    if not found:
        config = with_attention(config, recipe.attention.choices)
        found = [*check_objectives(recipe.objective, family, config)]
    yield from found
    if recipe.tokenizer is not None and recipe.tokenizer.sides is not None:
        yield from check_tokenizers(recipe.objective, family, config)


def _check_metrics(recipe: "Recipe") -> Iterator[Misfit]:
    name = recipe.objective[0].name
    if recipe.eval.metrics and not issubclass(load_class(name), Task):
        yield (
            ("eval", "metrics"),
            f"objective {name} is trained on running text, which has no answers to score; remove "
            "the setting",
        )


def with_attention(config: ModelConfig, choices: tuple[AttentionChoice, ...]) -> ModelConfig:
    """Return the settings of a model with these kinds of attention; if empty, unchanged."""
    return config.model_copy(update={"attention": choices}) if choices else config


def check_attention(
    section: Attention, config: ModelConfig, objectives: Sequence[Objective]
) -> Iterator[Misfit]:
    """Yield the kinds that a family cannot have, and a backend that nothing takes."""
    for number, choice in enumerate(section.choices):
        if reason := config.refuses_attention(choice):
            path: Path = ("attention", "layers", number) if section.layers else ("attention",)
            from nlpkit.recipe.alternatives import fitting_kinds, list_kinds

            fitting = fitting_kinds(config, classes(objectives))
            # If the kind is among them, its settings do not fit, and the reason says which.
            others = "" if choice.kind in fitting else list_kinds(fitting)
            yield (*path, "kind"), f"{choice.kind} does not fit the model: {reason}{others}"
    if section.backend != "auto" and not config.kinds:
        yield ("attention", "backend"), "the model has no attention to compute; set it to auto"
    own = [c.kind for c in section.choices or config.kinds if c.is_custom]
    if own and section.backend != "auto":
        yield (
            ("attention", "backend"),
            f"kind {own[0]} has its own computation and takes no backend; set it to auto",
        )


def check_tokenizers(
    objectives: Sequence[Objective], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield why sources and targets cannot have a tokenizer each."""
    path: Path = ("tokenizer", "source")
    if not hasattr(config, "source_vocab_size"):
        known = [n for n in registry.names("models") if _has_two_vocabularies(n)]
        yield (
            path,
            f"family {family} has one vocabulary for sources and targets; families with "
            f"two: {', '.join(known)}",
        )
    single = [o.name for o in objectives if not load_class(o.name).two_tokenizers]
    if single:
        known = [n for n in registry.names("objectives") if load_class(n).two_tokenizers]
        yield path, f"objective {single[0]} takes one tokenizer; these take two: {', '.join(known)}"


def _has_two_vocabularies(family: str) -> bool:
    return "source_vocab_size" in registry.load("models", family).Config.model_fields


def check_objectives(
    objectives: Sequence[Objective], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield the objectives that cannot train the model or cannot be combined."""
    owners: dict[str, str] = {}  # name of a loss -> the earlier objective that has it
    for number, section in enumerate(objectives):
        at: Path = ("objective", number) if len(objectives) > 1 else ("objective",)
        made = load_class(section.name)
        if number and not made.composable:
            what = (
                f"{section.name} makes whole examples and cannot follow {objectives[0].name}; "
                "name it first, or alone"
            )
        elif twice := [part for part in made.parts if part in owners]:
            what = (
                f"{section.name} has a loss called {twice[0]}, as {owners[twice[0]]} before it; "
                "remove one of them"
            )
        elif kinds := _check_kinds(section.name, made, config):
            yield from kinds
            what = ""
        else:
            what = _check_needs(section.name, made, family, config)
            what = what or ("" if number else _check_inputs(objectives, family, config))
            what = what or _check_summary(section.name, made, config)
        if what:
            yield (*at, "name"), what
        elif members := members_of(section):
            for of, problem in _check_members(members, family, config):
                yield (*at, "of", of, "name"), problem
        owners |= dict.fromkeys(made.parts, section.name)


def _check_needs(
    name: str, objective: type[ObjectiveClass], family: str, config: ModelConfig
) -> str:
    if lacking := missing_needs(objective, config):
        from nlpkit.recipe.alternatives import describe_needs

        return f"{name} needs {describe_needs(lacking, objective, family, config)}"
    if objective.reads_text and not config.has_vocabulary:
        return f"{name} reads text, and family {family} has no vocabulary"
    return ""


def _check_inputs(objectives: Sequence[Objective], family: str, config: ModelConfig) -> str:
    """Return which inputs of the model nothing gives."""
    name = objectives[0].name
    given = {field for made in classes(objectives) for field in made.inputs}
    if config.has_vocabulary and not reads_text(objectives):
        what = f"{name} reads no text, and family {family} has a vocabulary"
    elif unread := [field for field in config.inputs if field not in given]:
        what = f"{name} does not give {', '.join(unread)}, which family {family} reads"
    else:
        return ""
    from nlpkit.recipe.alternatives import suggest

    return what + suggest(load_class(name), config)


def _check_summary(name: str, objective: type[ObjectiveClass], config: ModelConfig) -> str:
    if not (objective.reads_summary and config.summary_first and config.causal):
        return ""
    (default,) = {choice.kind for choice in config.default_attention}
    return (
        f"{name} reads the state of the first token, which sees no other token with attention "
        f"{name_kinds(config)}; set attention: {{kind: {default}}}"
    )


def _check_kinds(name: str, objective: type[ObjectiveClass], config: ModelConfig) -> list[Misfit]:
    """Return the recipe's kinds of attention with which the objective does not train the family.

    Empty if other kinds would not be enough.
    """
    if missing_needs(objective, config.model_copy(update={"attention": ()})):
        return []
    found: list[Misfit] = []
    for number, choice in enumerate(config.attention):
        if lacking := missing_needs(objective, with_attention(config, (choice,))):
            from nlpkit.recipe.alternatives import fitting_kinds, list_kinds

            layer: Path = ("layers", number) if len(config.attention) > 1 else ()
            needed = ", ".join(f"{n} ({CAPABILITIES[n]})" for n in lacking if n in CAPABILITIES)
            what = f"{choice.kind} is {config.kinds[number].visibility}, and {name} needs {needed}"
            what += list_kinds(fitting_kinds(config, [objective]))
            found.append((("attention", *layer, "kind"), what))
    return found


def _check_members(
    members: Sequence[Any], family: str, config: ModelConfig
) -> Iterator[tuple[int, str]]:
    """Yield the members that cannot be mixed or cannot train the model."""
    from nlpkit.objectives.several.members import difference

    first = members[0]
    for number, member in enumerate(members):
        made = member.objective
        if members_of(member):
            yield number, f"{member.name} is a mixture itself; name its members here"
        elif issubclass(made, Task) or not made.reads_text:
            yield (
                number,
                f"{member.name} does not learn from running text, as the members of a mixture do",
            )
        elif what := _check_needs(member.name, made, family, config):
            yield number, what
        elif what := difference(first.objective, made):
            yield number, f"{first.label} and {member.label} {what}"


def load_class(name: str) -> type[ObjectiveClass]:
    """Return the class of an objective."""
    made: type[ObjectiveClass] = registry.load(Objective.FOLDER, name).Objective
    return made


def members_of(section: Part) -> list[Any]:
    """Return the objectives that an objective mixes: the parts of its kind in its settings."""
    values = [each for each in vars(section.config).values() if isinstance(each, list | tuple)]
    return [one for each in values for one in each
            if isinstance(one, Part) and one.FOLDER == Objective.FOLDER]  # fmt: skip


def classes(objectives: Sequence[Objective]) -> list[type[ObjectiveClass]]:
    """Return the classes of the objectives; for a mixture, those of its members."""
    return [load_class(part.name) for part in parts(objectives)]


def parts(objectives: Sequence[Objective]) -> list[Any]:
    """Return the objectives with their settings; for a mixture, its members."""
    return [part for section in objectives for part in members_of(section) or [section]]


def reads_text(objectives: Sequence[Objective]) -> bool:
    """Return whether an objective reads text, so that a tokenizer is needed."""
    return any(made.reads_text for made in classes(objectives))


def has_vocabulary(model: Model | None) -> bool | None:
    """Return whether the model reads tokens, or None where the recipe does not say."""
    config = None if model is None else model.config
    return config.has_vocabulary if isinstance(config, ModelConfig) else None


def missing_needs(objective: type[ObjectiveClass], config: ModelConfig) -> list[str]:
    """Return the needs of the objective that the model's `Config` lacks or has as False.

    Who predicts text needs states that predict tokens, or a generator.
    """
    lacking = [name for name in objective.needs if getattr(config, name, False) is False]
    if objective.predicts_text and "generator" not in objective.needs:
        lacking += [] if getattr(config, "predicts_tokens", True) else ["predicts_tokens"]
    return lacking


def trains(objective: type[ObjectiveClass], config: ModelConfig) -> bool:
    """Return whether an objective alone trains a model with these settings."""
    if missing_needs(objective, config) or objective.reads_text != config.has_vocabulary:
        return False
    return {*config.inputs} <= {*objective.inputs}


def name_kinds(config: ModelConfig) -> str:
    return ", ".join(dict.fromkeys(choice.kind for choice in config.attention))
