"""Checks that family, attention and objectives of a recipe fit together, without torch.

The capabilities of families, which objectives require, are in `models/config.py`. What would fit
instead is looked for, in `recipe/alternatives`, only for a message.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Part
from nlpkit.contracts.objective import Objective as ObjectiveClass
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.recipe.places import Document, Path, Problem
from nlpkit.recipe.sections import Attention, Model, Objective

if TYPE_CHECKING:
    from nlpkit.recipe.settings import Recipe

Misfit = tuple[Path, str]  # the setting, and why it does not fit
_RARE = {  # the settings that `check_rare` looks at
    *(("eval", name) for name in ("metrics", "baseline", "pairs")),
    *(("train", name) for name in ("z_loss", "best_by")),
    *(("data", "valid_group"), ("model", "source_vocab_size")),
}


def check(recipe: "Recipe", document: Document) -> list[Problem]:
    """Return what does not fit, each with its place; sizes from `init_from` are checked later."""
    found = [*_check_model(recipe)]
    if not found and (_RARE & document.places.keys() or any(o.lengths for o in recipe.objective)):
        from nlpkit.recipe.alternatives import check_rare

        found += check_rare(recipe)
    return [Problem.at(document.place(path), path, what) for path, what in found]


def _check_model(recipe: "Recipe") -> Iterator[Misfit]:
    path = ("model", "family")
    if recipe.model is None or (recipe.model.family is None and recipe.init_from is not None):
        return
    if recipe.model.family is None:
        yield path, f"missing (model family: {', '.join(registry.names('models'))})"
        return
    family, config = recipe.model.family, recipe.model.config
    if not isinstance(config, ModelConfig):
        yield path, f"Config of {family} must be derived from nlpkit.models.config.ModelConfig"
        return
    found = [*check_attention(recipe.attention, config, recipe.objective)]
    chosen = with_attention(config, recipe.attention.choices)
    yield from found or check_objectives(recipe.objective, family, chosen)
    if recipe.tokenizer is not None and recipe.tokenizer.sides is not None:
        from nlpkit.recipe.alternatives import check_tokenizers

        yield from check_tokenizers(recipe.objective, family, config)


def with_attention(config: ModelConfig, choices: tuple[AttentionChoice, ...]) -> ModelConfig:
    """Return the settings of a model with these kinds of attention; if empty, unchanged."""
    return config.model_copy(update={"attention": choices}) if choices else config


def check_attention(
    section: Attention, config: ModelConfig, objectives: Sequence[Objective]
) -> Iterator[Misfit]:
    """Yield kinds that a family cannot have, and a backend without use."""
    for number, choice in enumerate(section.choices):
        path: Path = ("attention", "layers", number) if section.layers else ("attention",)
        if reason := config.refuses_attention(choice):
            from nlpkit.recipe.alternatives import list_kinds

            # If the kind is among them, its settings do not fit, and the reason says which.
            others = list_kinds(config, classes(objectives), besides=choice.kind)
            yield (*path, "kind"), f"{choice.kind} does not fit the model: {reason}{others}"
    if section.backend != "auto" and not config.kinds:
        yield ("attention", "backend"), "the model has no attention to compute; set it to auto"


def check_objectives(
    objectives: Sequence[Objective], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield the objectives that cannot train the model or cannot be combined."""
    conflicts: dict[int, str] = {}  # by the number of the objective
    if len(objectives) > 1 or objectives[0].objective.adds_only:
        from nlpkit.recipe.alternatives import find_conflicts

        conflicts = find_conflicts(objectives)
    for number, section in enumerate(objectives):
        at: Path = ("objective", number) if len(objectives) > 1 else ("objective",)
        name, made = section.name, section.objective
        if what := conflicts.get(number, ""):
            yield (*at, "name"), what
        elif missing_needs(made, config) or (made.reads_text and not config.can("has_vocabulary")):
            from nlpkit.recipe.alternatives import describe_needs

            yield from describe_needs(name, (*at, "name"), family, config)
        elif not number and (lacking := _find_unread(objectives, config)):
            from nlpkit.recipe.alternatives import suggest

            what = f"{name} {lacking[0]}, and family {family} {lacking[1]}{suggest(made, config)}"
            yield (*at, "name"), what
        elif made.reads_summary and config.summary_first and config.can("causal"):
            default = config.default_attention[0].kind
            what = f"{name} reads the state of the first token, which sees no other token with "
            what += f"attention {config.attention[0].kind}; set attention: {{kind: {default}}}"
            yield (*at, "name"), what
        elif members := members_of(section):
            from nlpkit.recipe.alternatives import check_members

            yield from check_members(members, (*at, "of"), family, config)


def _find_unread(objectives: Sequence[Objective], config: ModelConfig) -> tuple[str, str] | None:
    """Return what the objectives do not give and the family needs; None if nothing."""
    given = {name for made in classes(objectives) for name in made.inputs}
    if config.can("has_vocabulary") and not reads_text(objectives):
        return "reads no text", "has a vocabulary"
    if unread := ", ".join(name for name in config.inputs if name not in given):
        return f"does not give {unread}", "reads them"
    return None


def members_of(section: Part) -> list[Any]:
    """Return the objectives that an objective mixes: the parts of its kind in its settings."""
    values = [each for each in vars(section.config).values() if isinstance(each, list | tuple)]
    return [one for each in values for one in each
            if isinstance(one, Part) and one.FOLDER == Objective.FOLDER]  # fmt: skip


def classes(objectives: Sequence[Objective]) -> list[type[ObjectiveClass]]:
    """Return the classes of the objectives; for a mixture, those of its members."""
    return [part.objective for part in parts(objectives)]


def parts(objectives: Sequence[Objective]) -> list[Any]:
    """Return the objectives with their settings; for a mixture, its members."""
    return [part for section in objectives for part in members_of(section) or [section]]


def list_special_tokens(objectives: Sequence[Objective], config: ModelConfig) -> list[str]:
    """Return the special tokens that the objectives need with a model, each once."""
    found = [each.objective.special_tokens(each.config, config) for each in parts(objectives)]
    return list(dict.fromkeys(token for tokens in found for token in tokens))


def reads_text(objectives: Sequence[Objective]) -> bool:
    """Return whether an objective reads text, so that a tokenizer is needed."""
    return any(made.reads_text for made in classes(objectives))


def has_vocabulary(model: Model | None) -> bool | None:
    """Return whether the model reads tokens, or None where the recipe does not say."""
    config = None if model is None else model.config
    return config.can("has_vocabulary") if isinstance(config, ModelConfig) else None


def missing_needs(objective: type[ObjectiveClass], config: ModelConfig) -> list[str]:
    """Return the needs of the objective that the model's `Config` lacks or has as False.

    Who predicts text needs states that predict tokens, or a generator.
    """
    has = config.capabilities
    lacking = [
        name
        for name in objective.needs
        if (name not in has if name in CAPABILITIES else getattr(config, name, False) is False)
    ]
    if objective.predicts_text and "generator" not in objective.needs:
        lacking += [] if "predicts_tokens" in has else ["predicts_tokens"]
    return lacking
