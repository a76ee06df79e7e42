"""The JSON schema of a recipe (draft 2020-12), for completion and checks in an editor.

Made from the `Config` classes. Rules between settings are not in it: only loading checks them.
"""

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.objectives.several.members import Member
from nlpkit.part import Part
from nlpkit.recipe import Recipe, extends, sections
from nlpkit.recipe.sections import Attention, AttentionLayer, Model, Objective, Side, Tokenizer
from nlpkit.train.settings import Optimizer

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_NOT_NULL: Schema = {"not": {"type": "null"}}


def schema() -> Schema:
    """Return the schema; a section that names a part allows the settings of that part alone."""
    sections_of_parts = (
        *(Model, Tokenizer, Side, Objective, Member, Attention, AttentionLayer, Optimizer),
    )
    parts = {part: _configs(part) for part in sections_of_parts}
    fixed = _fixed()
    configs: list[type[FrozenConfig]] = [*fixed.values()]
    configs += [config for chosen in parts.values() for config in chosen.values()]
    configs += [Member, Optimizer]
    references, holder = models_json_schema([(each, "validation") for each in configs])
    defs: dict[str, Schema] = holder["$defs"]

    def name_of(config: type[FrozenConfig]) -> str:
        return references[config, "validation"]["$ref"].rpartition("/")[2]

    def written(config: type[FrozenConfig]) -> Schema:
        return defs[name_of(config)]

    lengths = written(fixed["train"]).pop("anyOf")
    by_part = {
        part: _part(part, {name: written(config) for name, config in chosen.items()})
        for part, chosen in parts.items()
    }
    defs[name_of(Member)] = by_part[Member]  # what mixtures refer to
    defs[name_of(Optimizer)] = by_part[Optimizer]  # what the section train refers to
    once = {part: {"$ref": f"#/$defs/{part.__name__}"} for part in (Objective, Side)}
    defs |= {part.__name__: by_part[part] for part in once}  # they are used more than once
    objectives = {"type": "array", "minItems": 1, "items": once[Objective]}
    special = {
        "model": by_part[Model],
        "tokenizer": by_part[Tokenizer],
        # Not `anyOf`: a mistake in a list is then said of its entry.
        "objective": {"if": {"type": "array"}, "then": objectives, "else": once[Objective]},
        "attention": by_part[Attention],
        **{section: written(config) for section, config in fixed.items()},
    }
    for name in ("model", "tokenizer", "lora"):  # a written-out recipe says null of these
        special[name] = {"anyOf": [special[name], {"type": "null"}], "default": None}
    own = by_part[Tokenizer]["properties"]
    for side in ("source", "target"):
        own[side] |= once[Side]
    own = by_part[Attention]["properties"]
    own["backend"]["enum"] = ["auto", *registry.names(sections.BACKENDS)]
    own["layers"]["items"] = by_part[AttentionLayer]
    special |= {name: plain for name, plain in _plain().items() if name not in special}
    described = {name: {"description": f.description} for name, f in Recipe.model_fields.items()}
    whole = {
        "properties": {name: special[name] | about for name, about in described.items()},
        "required": ["name", "data", "objective"],
        # Whether a tokenizer is needed is the objective's affair.
        "anyOf": [{"required": ["model"]}, {"required": ["init_from"]}],
        # The length of training may be decided by the size of the model.
        "if": _with("model", {"anyOf": [_with(name, _NOT_NULL) for name in sections.TARGETS]}),
        "else": _with("train", {"anyOf": lengths}),
    }
    special |= _parts_of_sections(special, by_part, objectives)
    return {
        "$schema": _DIALECT,
        "title": "nlpkit recipe",
        "type": "object",
        "properties": described,
        "additionalProperties": False,
        "if": {
            "required": [extends.KEY],
            "not": {"properties": {extends.KEY: {"const": None}}},
        },
        "then": {"properties": {name: special[name] | about for name, about in described.items()}},
        "else": whole,
        "$defs": defs,
    }


def _fixed() -> dict[str, type[FrozenConfig]]:
    """Return the sections whose settings are always those of one class."""
    classes = {
        name: sections.config_classes(field.annotation)
        for name, field in Recipe.model_fields.items()
    }
    return {
        name: found[0]
        for name, found in classes.items()
        if found and not issubclass(found[0], Part)
    }


def _with(name: str, described: Schema) -> Schema:
    """Return the schema of a mapping that has a setting, and this one."""
    return {"properties": {name: {"description": name, **described}}, "required": [name]}


def _plain() -> dict[str, Schema]:
    """Return the schemas of the settings that are in no section."""
    return dict(Recipe.model_json_schema()["properties"])


def _parts_of_sections(
    whole: dict[str, Schema], by_part: Mapping[Any, Schema], objectives: Schema
) -> dict[str, Schema]:
    """Return the sections of a recipe that builds on another one, which may say the rest."""
    objective = _loose(by_part[Objective], Objective.KEY)
    loose = {
        "model": _loose(by_part[Model], Model.KEY),
        "attention": _loose(by_part[Attention], Attention.KEY),
        "objective": {"if": {"type": "array"}, "then": objectives, "else": objective},
    }
    tokenizer = _loose(by_part[Tokenizer], Tokenizer.KEY)
    side = _loose(by_part[Side], Side.KEY)
    sides = {name: side | {"description": tokenizer["properties"][name]["description"]}
             for name in ("source", "target")}  # fmt: skip
    loose["tokenizer"] = tokenizer | {"properties": tokenizer["properties"] | sides}
    for name in _fixed():
        section = whole[name]["anyOf"][0] if name == "lora" else whole[name]  # or null
        loose[name] = {key: section[key] for key in ("type", "properties", "additionalProperties")}
    optimizer = by_part[Optimizer]
    about = {"description": loose["train"]["properties"]["optimizer"]["description"]}
    either = optimizer | {"else": _loose(optimizer["else"], Optimizer.KEY)} | about
    train = loose["train"]
    loose["train"] = train | {"properties": train["properties"] | {"optimizer": either}}
    return {name: {"if": {"type": "null"}, "else": part} for name, part in loose.items()}


def _loose(section: Schema, key: str) -> Schema:
    """Return the section of a part without what it must hold: a base may say that.

    Where the part is not named, it may hold the settings of any.
    """
    rules = [rule for rule in section["allOf"] if "then" in rule]
    names = {name for rule in rules for name in rule["then"]["properties"]}
    return {
        "type": "object",
        "properties": section["properties"],
        "allOf": [{"if": rule["if"], "then": rule["then"] | {"required": []}} for rule in rules],
        "if": {"required": [key]},
        "else": {"propertyNames": {"enum": sorted({*names, *section["properties"]})}},
    }


def _configs(part: type[Part]) -> dict[str, type[FrozenConfig]]:
    return {name: registry.load(part.FOLDER, name).Config for name in registry.names(part.FOLDER)}


def _part(part: type[Part], configs: dict[str, Schema]) -> Schema:
    """Return the schema of a section whose `part.KEY` decides which settings it may hold."""
    own: Schema = part.model_json_schema()["properties"]
    del own["config"]
    if part is Tokenizer:  # `schema` says more of them
        sides = ("source", "target")
        own |= {side: {"description": part.model_fields[side].description} for side in sides}
    # A dotted name is a module of the user's, whose settings are not known here.
    module = {"type": "string", "pattern": r"\w\.\w"}
    own[part.KEY] = {
        "description": part.model_fields[part.KEY].description,
        "anyOf": [{"enum": list(configs)}, module],
    }
    rules: list[Schema] = []
    for name, config in configs.items():
        then = {
            "properties": own | config.get("properties", {}),
            "required": config.get("required", []),
            "additionalProperties": False,
        }
        if "description" in config:
            then["description"] = config["description"]
        chosen = {"properties": {part.KEY: {"const": name}}, "required": [part.KEY]}
        rules.append({"if": chosen, "then": then})
    section: Schema = {"type": "object", "properties": own, "allOf": rules}
    if part.SHORT:
        section["required"] = [part.KEY]
        return {"if": {"type": "string"}, "then": own[part.KEY], "else": section}
    if part is Attention:
        own["layers"] = {
            "description": part.model_fields["layers"].description,
            "type": "array",
            "minItems": 1,
        }
        plain = {"properties": own, "additionalProperties": False}
        return section | {"allOf": [*rules, {"if": {"required": [part.KEY]}, "else": plain}]}
    if part in (Tokenizer, Side):
        others = [name for name in ("path", "source", "target") if name in own]
        trained = {
            "required": [part.KEY],
            "not": {"anyOf": [{"required": [name]} for name in others]},
        }
        finished: Schema = {"required": ["path"], "maxProperties": 1}
        ways = [trained, finished]
        if part is Tokenizer:
            ways.append({"required": ["source", "target"], "maxProperties": 2})
        return section | {"oneOf": ways}
    if part is Model:  # beside init_from, a rate of dropout alone
        rates = {"patternProperties": {"dropout$": {"type": "number"}}}
        alone = rates | {"properties": {part.KEY: own[part.KEY]}, "additionalProperties": False}
        return section | {"allOf": [*rules, {"if": {"required": [part.KEY]}, "else": alone}]}
    return section | {"required": [part.KEY]}
