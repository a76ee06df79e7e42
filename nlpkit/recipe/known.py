"""The settings that a recipe may have, where their values come from, and which differ.

None of this is needed for a run that is in order.
"""

import json
from copy import copy
from typing import Any, get_origin

from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from nlpkit import registry
from nlpkit.config import FrozenConfig, Part
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.recipe import COMMAND_LINE, DECIDED, DEFAULT
from nlpkit.recipe.places import Document, Path, dotted, flatten
from nlpkit.recipe.sections import config_classes
from nlpkit.recipe.settings import Recipe


def list_settings(
    data: object, root: type[FrozenConfig] = Recipe
) -> dict[Path, dict[str, FieldInfo]]:
    """Return the settings that each mapping in `data`, a `root`, may hold, by its path."""
    found: dict[Path, dict[str, FieldInfo]] = {}

    def visit(path: Path, value: object, configs: list[type[FrozenConfig]]) -> None:
        short = [config for config in configs if issubclass(config, Part) and config.SHORT]
        if short and isinstance(value, str):
            value = {short[0].KEY: value}
        if isinstance(value, list):
            for index, item in enumerate(value):
                visit((*path, index), item, configs)
        elif isinstance(value, dict):
            fields: dict[str, FieldInfo] = {}
            for config in configs:
                fields |= _list_fields(config, value)
            found[path] = fields
            for key, field in fields.items():
                if inner := config_classes(field.annotation):
                    given = value.get(key) or {}
                    is_named = get_origin(field.annotation) is dict and isinstance(given, dict)
                    for name in given if is_named else ():  # as the conditions of an experiment
                        visit((*path, key, name), given[name], inner)
                    visit((*path, key), {} if is_named else given, [] if is_named else inner)

    visit((), data if isinstance(data, dict) else {}, [root])
    return found


def _list_fields(config: type[FrozenConfig], value: JsonObject) -> dict[str, FieldInfo]:
    if not issubclass(config, Part):
        return {
            field.alias or name: field
            for name, field in config.model_fields.items()
            # Such as `phases` of `train`, which is no setting of a recipe.
            if not any(type(each) is SkipJsonSchema for each in field.metadata)
        }
    chosen = config.config_of(value)
    own = config.own()
    key = copy(own[config.KEY])
    key.description = f"{key.description}: {', '.join(registry.names(config.FOLDER))}"
    own[config.KEY] = key
    settings = chosen.model_fields if chosen else {}
    return own | {name: field for name, field in settings.items() if not field.exclude}


def find_origins(recipe: Recipe, document: Document) -> dict[str, str]:
    """Return the origin of every setting; see `Resolved`."""
    dump = recipe.model_dump(mode="json")
    known = list_settings(dump)
    origins = {}
    for leaf, value in flatten(dump):
        setting = known.get(leaf[:-1], {}).get(str(leaf[-1]))
        is_default = setting is not None and setting.default == value
        origins[dotted(leaf)] = _find_origin(leaf, document, is_default)
    return origins


def _find_origin(leaf: Path, document: Document, is_default: bool) -> str:
    if leaf[0] == "objective" and isinstance(document.data["objective"], list):
        leaf = leaf if isinstance(leaf[1], int) else (leaf[0], 0, *leaf[1:])
    here: Any = document.data
    for step in leaf:
        if here is None or (isinstance(here, dict) and step not in here):
            return DEFAULT
        try:
            here = here[step]
        except (TypeError, IndexError):  # the part's `Config` has expanded a short form
            if is_default:
                return DEFAULT
            break
    place = document.place(leaf)
    if place.decides:
        return f"{DECIDED}{place.decides}"
    return COMMAND_LINE if place.on_command_line else f"{place.source}:{place.value[0]}"


def find_changes(old: JsonMapping, new: JsonMapping) -> list[str]:
    """Return the settings (`train.lr`) that differ between two dumps, without free ones."""
    free = {
        (*path, name)
        for data in (old, new)
        for path, fields in list_settings(data).items()
        for name, field in fields.items()
        # What cannot change what is computed.
        if isinstance(extra := field.json_schema_extra, dict) and extra.get("free") is True
    }
    was, now = ({path: json.dumps(of) for path, of in flatten(data)} for data in (old, new))
    differing = [path for path in was | now if was.get(path) != now.get(path)]
    return [
        dotted(path)
        for path in differing
        if not any(path[:length] in free for length in range(1, len(path) + 1))
        and not any(path[:length] in differing for length in range(1, len(path)))  # one change
    ]
