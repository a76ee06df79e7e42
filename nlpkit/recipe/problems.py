"""Pydantic's errors as plain sentences: path, what is wrong, what would be right.

It expects classes derived from `FrozenConfig`, which has strict types and refuses unknown keys. An
error type that is not in the tables keeps pydantic's message.
"""

import re
from collections.abc import Mapping, Set
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nlpkit import registry
from nlpkit.config import NAME_ALONE
from nlpkit.recipe import yaml
from nlpkit.recipe.places import Document, Path, Place, Problem, dotted, quote, undotted, value_at

# The path of each mapping of a recipe -> the settings that it may have.
Known = Mapping[Path, Mapping[str, FieldInfo]]

_EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"),
        "settings (`key: value`)",
    ),
    NAME_ALONE: "settings (`key: value`)",
    "string_type": "text",
    "none_required": "null",
}
_RULES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_long": "must have at most {max_length} entries",
}
_ENTRIES = {"too_short": ("entry", "entries"), "string_too_short": ("character", "characters")}
_NAMES = {"extra_forbidden": "unknown setting", "missing": "missing"}
_BOOLEANS = {
    **dict.fromkeys(("yes", "y", "on", "1"), "true"),
    **dict.fromkeys(("no", "n", "off", "0"), "false"),
}


def explain(errors: list[ErrorDetails], document: Document, known: Known) -> list[Problem]:
    """Return the problems of `ValidationError.errors()`, with their places in the recipe."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_find_path(error, document.data), []).append(error)
    problems = []
    for path, found in by_path.items():
        # All branches of a union report errors; if one reports an inner value, it is the one meant.
        deeper = any(len(other) > len(path) and other[: len(path)] == path for other in by_path)
        # An entry that is wrong is missing where entries are counted.
        if deeper and all(error["type"] in (*_EXPECTED, "too_short") for error in found):
            continue
        problems.append(_explain(path, found, document, known))
    return problems


def _find_path(error: ErrorDetails, data: object) -> Path:
    path: Path = ()
    here: Any = data
    location = error["loc"]
    for index, step in enumerate(location):
        in_mapping = isinstance(here, dict) and step in here
        in_list = isinstance(here, list) and isinstance(step, int) and step < len(here)
        last = index == len(location) - 1
        if in_mapping or in_list:
            here = here[step]
        elif index == 0 or (last and error["type"] == "missing"):
            here = None
        else:
            continue
        path = (*path, step)
    return path


def _explain(path: Path, found: list[ErrorDetails], document: Document, known: Known) -> Problem:
    error = found[0]
    if path[:2] == ("model", "attention"):  # a field of the family, not a setting
        path = path[:2]
        what = "unknown setting; attention is a section beside model: attention: {kind: …}"
        return Problem.at(document.place(path), path, what, key=True)
    place, section = document.place(path), value_at(document.data, path[:-1])
    glued = [key for key in section if ":" in str(key)] if isinstance(section, dict) else []
    if glued and error["type"] in _NAMES:  # {name:mlm} is a key without a value
        inside = (*path[:-1], glued[0])
        what = "a space is missing after the colon"
        return Problem.at(document.place(inside), inside, what, key=True)
    if error["type"] == "extra_forbidden":
        names = list(known.get(path[:-1], {}))
        near = registry.suggest(str(path[-1]), names) or f"; known: {', '.join(names)}"
        if path[-1] in known.get(path[:-2], {}) and len(path) > 2:  # one level too deep
            near = f", did you mean {dotted((*path[:-2], path[-1]))}?"
        return Problem.at(place, path, f"unknown setting{near}", key=True)
    if error["type"] == "missing":
        setting = known.get(path[:-1], {}).get(str(path[-1]))
        meaning = f" ({setting.description})" if setting and setting.description else ""
        return Problem.at(document.place(path[:-1]), path, f"missing{meaning}", key=True)
    value = value_at(document.data, path)
    expected = [_describe_expected(each) for each in found]
    if all(expected):
        wanted = " or ".join(dict.fromkeys(filter(None, expected)))
        what_is_wrong = _describe_value(wanted, found, value, place)
        if error["type"] == NAME_ALONE:
            what_is_wrong += f": {_suggest_key(path, error['ctx']['key'], value, place)}"
        elif isinstance(value, list) and "layers" in known.get((*path, 0), {}):
            what_is_wrong += ": write {layers: […]}"
        return Problem.at(place, path, what_is_wrong)
    # Of a union, the branch whose type the value has is the one meant.
    error = found[expected.index(None)]
    what = describe_error(error)
    if error["type"] in _RULES:
        what += f", got {place.text or value}"
    written = value if isinstance(value, dict) else {}
    inside, rest = _split_setting(what, {*known.get(path, {}), *written})
    return Problem.at(document.place((*path, *inside)), (*path, *inside), rest)


def _split_setting(what: str, known: Set[str]) -> tuple[Path, str]:
    """Split `heads: must divide width`, a message about a section with a setting `heads`."""
    found = re.match(r"(\w+)((?:\.[\w-]+)*): ", what)
    if not found or found[1] not in known:
        return (), what
    return undotted(found.group().removesuffix(": ")), what[found.end() :]


def describe_error(error: ErrorDetails) -> str:
    """Return what is wrong with a value, from an entry of `ValidationError.errors()`."""
    context = error.get("ctx", {})
    if error["type"] in _RULES:
        bounds = {k: f"{v:.15g}" if isinstance(v, float) else v for k, v in context.items()}
        return _RULES[error["type"]].format(**bounds)
    if error["type"] in _ENTRIES:
        singular, plural = _ENTRIES[error["type"]]
        least = context["min_length"]
        return f"must have at least {least} {singular if least == 1 else plural}"
    if error["type"] in ("value_error", "assertion_error"):
        return " ".join(str(context["error"]).split())
    if error["type"] in _NAMES:
        return _NAMES[error["type"]]
    if expected := _describe_expected(error):
        return f"expected {expected}"
    said = " ".join(error["msg"].split())
    return said[:1].lower() + said[1:]


def in_words(error: ValidationError) -> str:
    """Return what is wrong with settings that come from no recipe, and so have no places."""
    said = []
    for each in error.errors():
        name = ".".join(map(str, each["loc"]))
        is_value = each["type"] not in _NAMES and isinstance(each["input"], (str, int, float))
        got = f", got {each['input']!r}" if is_value else ""
        said.append(f"{name}: {describe_error(each)}{got}")
    return "; ".join(each.removeprefix(": ") for each in said)


def _describe_expected(error: ErrorDetails) -> str | None:
    if error["type"] in ("literal_error", "enum"):
        return f"one of {', '.join(_list_choices(error))}"
    return _EXPECTED.get(error["type"])


def _list_choices(error: ErrorDetails) -> list[str]:
    choices = error["ctx"]["expected"].replace(" or ", ", ").split(", ")
    return [choice.strip("'") for choice in choices]


def _describe_value(wanted: str, found: list[ErrorDetails], value: object, place: Place) -> str:
    what = f"expected {wanted}, got {_describe_got(value, place)}"
    literal = [error for error in found if error["type"] == "literal_error"]
    choices = [choice for error in literal for choice in _list_choices(error)]
    if choices and isinstance(value, str):
        return what + registry.suggest(value, choices)
    advice = _advise(wanted, value, place)
    return f"{what}: {advice}" if advice else what


def _suggest_key(path: Path, key: str, value: str, place: Place) -> str:
    """Return how a section is written of which only the name was given."""
    written = value if yaml.parse_scalar(value) == value else quote(value)
    how = f"write {{{key}: {written}}}"
    if place.on_command_line and len(path) == 1:
        how += f", or {path[0]}.{key}={written} to keep its other settings"
    return how


def _describe_got(value: object, place: Place) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the {'integer' if isinstance(value, int) else 'number'} {place.text}"
    if isinstance(value, str):
        return f"the text {quote(value)}"
    return "a list" if isinstance(value, list) else "settings (`key: value`)"


def _advise(wanted: str, value: object, place: Place) -> str | None:
    """Return what would be right, if this can be known."""
    if isinstance(value, str) and ("integer" in wanted or "number" in wanted):
        meant = yaml.parse_scalar(value)
        if isinstance(meant, (int, float)) and not isinstance(meant, bool):
            return "remove the quotes"
        bare = re.sub(r"(?<=\d)[_,](?=\d)", "", value)
        bare = re.sub(r"(?<![\d.])0+(?=\d)", "", bare)
        if isinstance(yaml.parse_scalar(bare), (int, float)):
            return f"write {bare}"
    elif isinstance(value, float) and "integer" in wanted and value.is_integer():
        return f"write {int(value)}"
    elif "true or false" in wanted and isinstance(value, (str, int)):
        if isinstance(yaml.parse_scalar(str(value)), bool):
            return "remove the quotes"
        meant = _BOOLEANS.get(str(value).lower())
        return f"write {meant}" if meant else None
    elif "text" in wanted and isinstance(value, dict) and not any(value.values()):
        return "put `{…}` in quotes"  # a field of a template, which YAML reads as settings
    elif "text" in wanted and isinstance(value, (bool, int, float)):
        return "put it in quotes"
    elif wanted == "a list" and isinstance(value, (str, int, float)):
        return f"write [{place.text}]"
    return None
