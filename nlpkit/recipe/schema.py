"""The JSON schema of a recipe (draft 2020-12), for completion and checks in an editor.

Made from the `Config` classes. Rules between settings are not in it: only loading checks them, as
the sections of parts in a recipe that `extends` another one.
"""

from collections.abc import Iterable, Mapping

from pydantic.json_schema import models_json_schema

from nlpkit import registry
from nlpkit.config import FrozenConfig, Part
from nlpkit.contracts.task import Task
from nlpkit.json_types import JsonObject
from nlpkit.objectives.several.members import Member
from nlpkit.recipe import Recipe, sections
from nlpkit.recipe.sections import Attention, AttentionLayer, Model, Objective, Side, Tokenizer
from nlpkit.train.settings import MAY_CHANGE, Optimizer, Schedule

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PARTS = (Model, Tokenizer, Side, Objective, Member, Attention, AttentionLayer, Optimizer, Schedule)
_SIDES = ("source", "target")
_SHORT = [part.__name__.lower() for part in _PARTS if part.SHORT]
Schema = JsonObject
_NULL: Schema = {"type": "null"}
_OBJECTIVE: Schema = {"$ref": "#/$defs/Objective"}
# Not `anyOf`: a mistake in a list is then said of its entry.
_LIST: Schema = {"type": "array", "minItems": 1, "items": _OBJECTIVE}


def build_schema() -> Schema:
    """Return the schema; a section that names a part allows the settings of that part alone."""
    names = {part: registry.names(part.FOLDER) for part in _PARTS}
    configs = {p: {n: registry.load(p.FOLDER, n).Config for n in names[p]} for p in _PARTS}
    fixed = _find_fixed()
    models: list[type[FrozenConfig]] = [Recipe, *_PARTS, *fixed.values()]
    models += [config for chosen in configs.values() for config in chosen.values()]
    references, holder = models_json_schema([(each, "validation") for each in models])
    defs: dict[str, Schema] = holder["$defs"]

    def name_of(config: type[FrozenConfig]) -> str:
        return references[config, "validation"]["$ref"].rpartition("/")[2]

    by_part = {
        part: _describe_part(part, defs[name_of(part)]["properties"],
                    {name: defs[name_of(config)] for name, config in chosen.items()})
        for part, chosen in configs.items()
    }  # fmt: skip
    defs |= {name_of(part): section for part, section in by_part.items()}
    for rule in defs[name_of(Objective)]["allOf"]:
        own, name = rule["then"]["properties"], rule["if"]["properties"]["name"]["const"]
        is_task = issubclass(registry.load(Objective.FOLDER, name).Objective, Task)
        if not is_task and "max_length" in own:
            own["max_length"] = _or_list(own["max_length"])
    train = defs[name_of(fixed["train"])]["properties"]
    train |= {name: _or_list(train[name]) for name in MAY_CHANGE}
    lengths = defs[name_of(fixed["train"])].pop("anyOf")
    properties = defs.pop(name_of(Recipe))["properties"]
    properties["objective"] |= {"if": {"type": "array"}, "then": _LIST, "else": _OBJECTIVE}
    del properties["objective"]["type"], properties["objective"]["items"]
    described = {name: {"description": each["description"]} for name, each in properties.items()}
    # A base may say the rest of a section; of parts it also says which they are.
    loose = {name: _loosen(defs[name_of(each)]) for name, each in fixed.items()}
    loose |= {key: {} for key in ("model", "tokenizer", "attention", "objective")}
    whole = {
        "properties": properties,
        "required": ["name", "data", "objective"],
        # Whether a tokenizer is needed is the objective's affair.
        "anyOf": [{"required": ["model"]}, {"required": ["init_from"]}],
        # The length of training may be decided by the size of the model.
        "if": _require("model", {"anyOf": [_require(n, {"not": _NULL}) for n in sections.TARGETS]}),
        "else": _require("train", {"anyOf": lengths}),
    }
    return {
        "$schema": _DIALECT,
        "title": "nlpkit recipe",
        "type": "object",
        "properties": described,
        "additionalProperties": False,
        "if": {"required": ["extends"], "not": {"properties": {"extends": {"const": None}}}},
        "then": {"properties": {n: loose.get(n, properties[n]) | described[n] for n in properties}},
        "else": whole,
        "$defs": defs,
    }


def _find_fixed() -> dict[str, type[FrozenConfig]]:
    fields = Recipe.model_fields.items()
    found = {name: sections.config_classes(field.annotation) for name, field in fields}
    return {name: cls for name, classes in found.items() for cls in classes
            if not issubclass(cls, Part)}  # fmt: skip


def _or_list(own: Schema) -> Schema:
    """Return the schema of a setting that may also be a list over the run (`train/phases.py`)."""
    value = {key: each for key, each in own.items() if key not in ("default", "title")}
    share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    entry = {
        "type": "object",
        "properties": {"until": {"description": "share of the run", **share}, "value": value},
        "required": ["value"],
        "additionalProperties": False,
    }
    listed = {"type": "array", "minItems": 1, "items": entry}
    described: Schema = {key: own[key] for key in ("description", "default", "title") if key in own}
    return {**described, "if": {"type": "array"}, "then": listed, "else": value}


def _require(name: str, described: Schema) -> Schema:
    """Return the schema of a mapping that has a setting, and this one."""
    return {"properties": {name: {"description": name, **described}}, "required": [name]}


def _loosen(section: Schema) -> Schema:
    """Return a section of a recipe that builds on another one, which may say the rest."""
    own = {name: each if name not in _SHORT else {"description": each["description"]}
           for name, each in section["properties"].items()}  # fmt: skip
    return {"type": ["object", "null"], "properties": own, "additionalProperties": False}


def _describe_part(part: type[Part], own: Schema, configs: Mapping[str, Schema]) -> Schema:
    key = part.KEY
    own = {name: each for name, each in own.items() if name != "config"}
    own[key] = {"description": part.model_fields[key].description, **_allow_names(configs)}
    rules: list[Schema] = [
        {
            "if": {"properties": {key: {"const": name}}, "required": [key]},
            "then": {
                "properties": own | config.get("properties", {}),
                "required": config.get("required", []),
                "additionalProperties": False,
                **({"description": config["description"]} if "description" in config else {}),
            },
        }
        for name, config in configs.items()
    ]
    section: Schema = {"type": "object", "properties": own, "allOf": rules}
    if part.SHORT:
        section["required"] = [key]
        return {"if": {"type": "string"}, "then": own[key], "else": section}
    if part is Attention:
        own["backend"] |= _allow_names(["auto", *registry.names(sections.BACKENDS)])
        own["layers"] |= own["layers"].pop("anyOf")[0]  # or null, which nobody writes
        return _unless_named(section, key, {"properties": own})
    if part is Model:  # beside init_from, a rate of dropout alone
        rates = {"patternProperties": {"dropout$": {"type": "number", "minimum": 0, "maximum": 1}}}
        return _unless_named(section, key, rates | {"properties": {key: own[key]}})
    if part not in (Tokenizer, Side):
        return section | {"required": [key]}
    others = [name for name in ("path", *_SIDES) if name in own]
    for name in others[1:]:
        own[name] = own[name]["anyOf"][0] | {"description": own[name]["description"]}
    ways: list[Schema] = [
        {"required": [key], "not": {"anyOf": [{"required": [name]} for name in others]}},
        {"required": ["path"], "maxProperties": 1},
    ]
    if part is Tokenizer:
        ways.append({"required": list(_SIDES), "maxProperties": 2})
    return section | {"oneOf": ways}


def _allow_names(names: Iterable[str]) -> Schema:
    # A dotted name is a module of the user's, whose settings are not known here.
    return {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": r"\w\.\w"}]}


def _unless_named(section: Schema, key: str, other: Schema) -> Schema:
    """Return the section of a part that need not be named; what it may hold then is `other`."""
    rule = {"if": {"required": [key]}, "else": other | {"additionalProperties": False}}
    return section | {"allOf": [*section["allOf"], rule]}
