"""Why parts of a recipe do not fit together, and which would: messages, and `recipes parts`."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.abilities import ScoresText, Scoring
from nlpkit.contracts.objective import ModelSettings, Objective
from nlpkit.contracts.task import Task
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.recipe.fit import Misfit, classes, members_of, missing_needs, with_attention
from nlpkit.recipe.places import Document, Path, Problem
from nlpkit.recipe.sections import Objective as Section

if TYPE_CHECKING:
    from nlpkit.recipe.settings import Recipe

KINDS = "attention/kinds"
_OF_PIECES = ("max_length", "contiguous")  # how text is cut into examples
_NOT_EVALUATED = (
    "nothing is held out, and so nothing is evaluated; set data.valid or data.valid_fraction"
)


def check_rare(recipe: "Recipe") -> Iterator[Misfit]:
    """Yield settings, which few recipes have, that the objective does not go with."""
    if recipe.model and recipe.model.family and recipe.model.config.source_vocab_size is not None:
        what = "is that of the tokenizer of sources, tokenizer.source; remove the setting"
        yield ("model", "source_vocab_size"), what
    name = recipe.objective[0].name
    is_task = issubclass(recipe.objective[0].objective, Task)
    if recipe.eval.metrics and not recipe.objective[0].objective.has_answers:
        what = f"objective {name} has no answers to score; "
        yield ("eval", "metrics"), what + "remove the setting"
    if recipe.eval.baseline and is_task:
        what = f"objective {name} is trained on rows, and n-grams need running text; "
        yield ("eval", "baseline"), what + "remove the setting"
    if recipe.data.valid_group is not None and not is_task:
        what = f"objective {name} is trained on documents, not on rows; remove the setting"
        yield ("data", "valid_group"), what
    if recipe.train.z_loss and not any(made.predicts_text for made in classes(recipe.objective)):
        yield ("train", "z_loss"), f"objective {name} predicts no tokens; remove the setting"
    if what := _find_wrong_figure(recipe):
        yield ("train", "best_by"), what
    if recipe.eval.pairs:
        yield from _check_pairs(recipe)
    if any(section.lengths for section in recipe.objective):
        yield from _check_lengths(recipe)


def find_idle(
    recipe: "Recipe", model: ModelSettings | None, document: Document
) -> Iterator[Problem]:
    """Yield `attention.layers` behind the model's, and how a second objective would cut text."""
    idle, has = dict[Path, str](), len(recipe.attention.layers or ())
    if model is not None:
        has = model.setting("num_layers", has) * model.setting("inner_layers", 1)
    if len(recipe.attention.layers or ()) > has:
        idle["attention", "layers"] = f"after layer {has}, the last of the model"
    first, *others = recipe.objective
    for number, config in enumerate((each.config for each in others), 1):
        for name in config.model_fields_set & {*_OF_PIECES}:
            value, usual = config.setting(name), type(config).model_fields[name].default
            cutting = members_of(first) or [first]
            if value not in [each.config.setting(name, usual) for each in cutting]:
                idle["objective", number, name] = f"behind {first.name}, which cuts the text"
    for at, why in idle.items():
        yield Problem.at(document.place(at), at, f"has no effect {why}")


def _find_wrong_figure(recipe: "Recipe") -> str:
    """Return why no evaluation can have `train.best_by`, or ""; what a task has is known later."""
    best_by, name = recipe.train.best_by, recipe.objective[0].name
    made = recipe.objective[0].objective
    predicts = issubclass(made, Task) and made.predict is not Task.predict
    metrics = recipe.eval.metrics if predicts else []  # other scores need generated text
    scores = [score for each in (made, *classes(recipe.objective)) for score in each.scores]
    pairs = ["pairs"] if recipe.eval.pairs else []
    figures = [*dict.fromkeys(("loss", *(metrics or ()), *scores, *pairs))]
    is_metric = best_by.partition(":")[0] in registry.names("score/metrics")
    what = f"objective {name} has no {best_by} during training"
    if metrics is None:  # the task's own, which its settings may choose
        near = registry.suggest(best_by, (*figures, *made.metrics))
        return "" if is_metric or best_by in figures else f"{what}{near}"
    if best_by not in figures:
        return f"{what}{registry.suggest(best_by, figures)}; it has {', '.join(figures)}"
    return ""


def _check_pairs(recipe: "Recipe") -> Iterator[Misfit]:
    scoring = [each for each in classes(recipe.objective) if issubclass(each, ScoresText)]
    method = recipe.eval.pairs_method
    if not scoring:
        able = [n for n in registry.names("objectives") if issubclass(_load(n), ScoresText)]
        names = ", ".join(part.name for part in recipe.objective)
        what = f"a model trained with {names} gives a text no probability"
        yield ("eval", "pairs"), f"{what}; with these it does: {', '.join(able)}"
        return
    methods = cast(type[Scoring], scoring[0]).scoring_methods
    if method and method not in methods:
        yield ("eval", "pairs_method"), f"no {method!r}; this model has {', '.join(methods)}"
    if not (recipe.data.valid or recipe.data.valid_fraction):
        yield ("eval", "pairs"), _NOT_EVALUATED
    elif recipe.train.budget and not (recipe.train.eval_every or recipe.eval.max_pairs):
        what = "with train.budget, their share of the run is known by train.eval_every; set that, "
        what += "or eval.max_pairs"
        yield ("eval", "pairs"), what


def _check_lengths(recipe: "Recipe") -> Iterator[Misfit]:
    name, several = recipe.objective[0].name, len(recipe.objective) > 1
    others = []
    if issubclass(recipe.objective[0].objective, Task):
        others.append(f"objective {name}, whose rows are not cut into examples")
    others += ["several objectives"] if several else []
    others += ["train.rows_per_step"] if recipe.train.rows_per_step else []
    for number, section in enumerate(recipe.objective) if others else ():
        at: Path = ("objective", number) if several else ("objective",)
        if section.lengths:
            yield (*at, "max_length"), f"a list does not go with {others[0]}"


def fitting_kinds(config: ModelConfig, objectives: Sequence[type[Objective]]) -> list[str]:
    """Return the kinds of attention with which these objectives train the model."""
    own = {choice.kind: choice for choice in config.default_attention}
    return [
        choice.kind
        for choice in (own.get(name) or AttentionChoice.of(name) for name in registry.names(KINDS))
        if not config.refuses_attention(choice)
        and not any(missing_needs(each, with_attention(config, (choice,))) for each in objectives)
    ]


def list_kinds(
    config: ModelConfig, objectives: Sequence[type[Objective]], besides: str = ""
) -> str:
    """Return a remark that names the kinds that fit; none if `besides` is one of them."""
    fitting = fitting_kinds(config, objectives)
    return f"; kinds that fit: {', '.join(fitting)}" if fitting and besides not in fitting else ""


def describe_needs(name: str, path: Path, family: str, config: ModelConfig) -> Iterator[Misfit]:
    """Yield why the objective at `path` does not train the family.

    At the recipe's kinds of attention, if others would be enough.
    """
    made = _load(name)
    lacking = missing_needs(made, config)
    if not lacking:
        yield path, f"{name} reads text, and family {family} has no vocabulary"
        return
    wanted = [f"{n} ({CAPABILITIES[n]})" if n in CAPABILITIES else f"model.{n}" for n in lacking]
    needs = f"{name} needs {', '.join(wanted)}"
    if not missing_needs(made, config.model_copy(update={"attention": ()})):
        for number, choice in enumerate(config.attention):
            if missing_needs(made, with_attention(config, (choice,))):
                layer: Path = ("layers", number) if len(config.attention) > 1 else ()
                what = f"{choice.kind} is {config.kinds[number].visibility}, and {needs}"
                yield ("attention", *layer, "kind"), what + list_kinds(config, [made])
        return
    kinds = ", ".join(dict.fromkeys(choice.kind for choice in config.attention))
    how = f" with attention {kinds}" if kinds else ""
    remark = suggest(made, config)
    for setting, value in _other_settings(made, config):
        how += f" with {setting} {json.dumps(getattr(config, setting))}"
        remark = f"; with {setting} {json.dumps(value)} it does"
    yield path, f"{needs}, which family {family}{how} does not have{remark}"


def check_tokenizers(
    objectives: Sequence[Section], family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield why sources and targets cannot have a tokenizer each."""
    path: Path = ("tokenizer", "source")
    word = "two_vocabularies"
    if not config.can(word):
        names = registry.names("models")
        known = [n for n in names if word in registry.load("models", n).Config.CAN]
        what = f"family {family} has one vocabulary for sources and targets; families with two: "
        yield path, what + ", ".join(known)
    if single := [o.name for o in objectives if not o.objective.two_tokenizers]:
        known = [n for n in registry.names("objectives") if _load(n).two_tokenizers]
        yield path, f"objective {single[0]} takes one tokenizer; these take two: {', '.join(known)}"


def check_members(
    members: Sequence[Any], at: Path, family: str, config: ModelConfig
) -> Iterator[Misfit]:
    """Yield the members that cannot be mixed or cannot train the model."""
    from nlpkit.objectives.several.members import difference

    first = members[0]
    for number, member in enumerate(members):
        made, what = member.objective, ""
        path = (*at, number, "name")
        if members_of(member):
            what = f"{member.name} is a mixture itself; name its members here"
        elif issubclass(made, Task) or not made.reads_text:
            what = f"{member.name} does not learn from running text, as the members of a mixture do"
        elif missing_needs(made, config) or not config.can("has_vocabulary"):
            yield from describe_needs(member.name, path, family, config)
        elif differs := difference(first.objective, made):
            what = f"{first.label} and {member.label} {differs}"
        if what:
            yield path, what


def find_conflicts(objectives: Sequence[Section]) -> dict[int, str]:
    """Return why objectives of a list cannot follow those before them, by their numbers."""
    owners: dict[str, str] = {}  # name of a loss -> the earlier objective that has it
    found: dict[int, str] = {}
    for number, section in enumerate(objectives):
        name, made = section.name, section.objective
        twice = [part for part in made.parts if part in owners]
        before, first, what = classes(objectives[:number]), objectives[0].name, ""
        if not number and made.adds_only:
            what = f"{name} adds a loss to that of the objective before it; name that one first: "
            what += f"objective: [{{name: …}}, {{name: {name}, …}}]"
        elif number and not made.composable:
            what = f"{name} makes whole examples and cannot follow {first}; name it first, or alone"
        elif number and issubclass(objectives[0].objective, Task):
            what = f"{name} cannot follow {first}, which reads rows; name one of them"
        elif twice:
            what = f"{name} has a loss called {twice[0]}, as {owners[twice[0]]} before it; "
            what += "remove one of them"
        elif "labels" in made.fields and any("labels" in each.fields for each in before):
            what = f"{name} would replace the labels of {first}; remove one of them"
        if what:
            found[number] = what
        owners |= dict.fromkeys(made.parts, name)
    return found


def _load(name: str) -> type[Objective]:
    made: type[Objective] = registry.load(Section.FOLDER, name).Objective
    return made


def _trains(objective: type[Objective], config: ModelConfig) -> bool:
    if missing_needs(objective, config) or objective.reads_text != config.can("has_vocabulary"):
        return False
    return {*config.inputs} <= {*objective.inputs}


def families_for(objective: type[Objective]) -> list[str]:
    """Return the families that the objective alone trains, with their default settings."""
    return [
        name
        for name in registry.names("models")
        if _trains(objective, registry.load("models", name).Config())
    ]


def families_with_setting(objective: type[Objective]) -> dict[str, list[str]]:
    """Return the families that the objective trains with one other setting, as `--set` takes it.

    That is a kind of attention or a setting of the model. These are not in `families_for`.
    """
    found = {}
    for name in registry.names("models"):
        config = registry.load("models", name).Config()
        settings = [
            f"attention.kind={kind}"
            for kind in fitting_kinds(config, [objective])
            if _trains(objective, with_attention(config, (AttentionChoice.of(kind),)))
        ] or [f"model.{name}={value}" for name, value in _other_settings(objective, config)]
        if settings and not _trains(objective, config):
            found[name] = settings
    return found


def _other_settings(objective: type[Objective], config: ModelConfig) -> Iterator[tuple[str, Any]]:
    for name in config.capability_settings:
        field = type(config).model_fields[name]
        is_literal = get_origin(field.annotation) is Literal
        others = get_args(field.annotation) if is_literal else field.examples
        for value in (field.default, *(others or ())):
            if _trains(objective, config.model_copy(update={name: value})):
                yield name, value
                break


def suggest(objective: type[Objective], config: ModelConfig) -> str:
    """Return a remark that names a setting, families that the objective trains, or a kind."""
    for setting, value in _other_settings(objective, config):
        return f"; set model.{setting}: {json.dumps(value)}"
    if families := families_for(objective):
        return f"; it trains: {', '.join(families)}"
    fitting = fitting_kinds(config, [objective])
    return f"; set attention: {{kind: {fitting[0]}}}" if fitting else ""
