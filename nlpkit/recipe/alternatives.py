"""Which families, kinds of attention and settings would fit: for messages and `recipes parts`."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.objective import Objective
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.recipe.fit import missing_needs, name_kinds, trains, with_attention

KINDS = "attention/kinds"


def fitting_kinds(config: ModelConfig, objectives: Sequence[type[Objective]]) -> list[str]:
    """Return the kinds of attention with which these objectives train the model."""
    own = {choice.kind: choice for choice in config.default_attention}
    return [
        choice.kind
        for choice in (own.get(name) or AttentionChoice.of(name) for name in registry.names(KINDS))
        if not config.refuses_attention(choice)
        and not any(missing_needs(each, with_attention(config, (choice,))) for each in objectives)
    ]


def list_kinds(fitting: Sequence[str]) -> str:
    return f"; kinds that fit: {', '.join(fitting)}" if fitting else ""


def describe_needs(
    lacking: Sequence[str], objective: type[Objective], family: str, config: ModelConfig
) -> str:
    wanted = [f"{n} ({CAPABILITIES[n]})" if n in CAPABILITIES else f"model.{n}" for n in lacking]
    how = f" with attention {name_kinds(config)}" if config.attention else ""
    remark = suggest(objective, config)
    for name, value in _other_settings(objective, config):
        how += f" with {name} {json.dumps(getattr(config, name))}"
        remark = f"; with {name} {json.dumps(value)} it does"
    return f"{', '.join(wanted)}, which family {family}{how} does not have{remark}"


def families_for(objective: type[Objective]) -> list[str]:
    """Return the families that the objective alone trains, with their default settings."""
    return [
        name
        for name in registry.names("models")
        if trains(objective, registry.load("models", name).Config())
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
            if trains(objective, with_attention(config, (AttentionChoice.of(kind),)))
        ] or [f"model.{name}={value}" for name, value in _other_settings(objective, config)]
        if settings and not trains(objective, config):
            found[name] = settings
    return found


def _other_settings(objective: type[Objective], config: ModelConfig) -> Iterator[tuple[str, Any]]:
    """Yield settings of the model with which the objective trains it, with their values."""
    for name in config.capability_settings:
        field = type(config).model_fields[name]
        others = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        for value in (field.default, *others):
            if trains(objective, config.model_copy(update={name: value})):
                yield name, value
                break


def suggest(objective: type[Objective], config: ModelConfig) -> str:
    """Return a remark that names the families that the objective trains, or a kind of attention."""
    if families := families_for(objective):
        return f"; it trains: {', '.join(families)}"
    fitting = fitting_kinds(config, [objective])
    return f"; set attention: {{kind: {fitting[0]}}}" if fitting else ""
