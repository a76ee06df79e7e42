"""Finds completions after `--set`: the settings of a recipe, and values that have names."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from nlpkit import recipe, registry
from nlpkit.errors import NlpkitError
from nlpkit.recipe import extends, sections, yaml
from nlpkit.recipe.overrides import apply
from nlpkit.recipe.places import Document
from nlpkit.train.sections import Optimizer, Schedule

Path = tuple[str | int, ...]


def list_offers(name: str | None, overrides: list[str], typed: str) -> Iterator[tuple[str, str]]:
    """Yield `section.` and `section.key=`, or values after the `=`, with descriptions.

    `name` is the recipe on the command line. If it is unreadable or missing, the settings of parts
    are unknown.
    """
    document = _read_recipe(name)
    for order, override in enumerate(overrides, 1):
        apply(document, override, order)
    key, equals, _ = typed.partition("=")
    *inside, last = key.split(".")
    path: Path = tuple(int(step) if step.isdecimal() else step for step in inside)
    # Without the other sections, whose parts would be imported.
    data = {name: value for name, value in document.data.items() if [name] == inside[:1]}
    known = sections.list_settings(recipe.Recipe, data)
    fields = known.get(path, {})
    if equals:
        yield from ((f"{key}={value}", "") for value in _list_values(path, last, fields))
        return
    before = "".join(f"{step}." for step in path)
    for setting, field in fields.items():
        has_more = any(other[: len(path) + 1] == (*path, setting) for other in known)
        yield f"{before}{setting}{'.' if has_more else '='}", field.description or ""


def _read_recipe(name: str | None) -> Document:
    """Return the recipe without validation; an empty one if it cannot be read."""
    document = yaml.read("{}", "")
    if name is not None:
        try:
            path = recipe.find(name)
            read = yaml.read(path.read_text(encoding="utf-8"), name)
            if isinstance(read.data, dict):
                document = extends.complete(read, path)
        except (NlpkitError, OSError, ValueError):
            return document
    return document


def _list_values(path: Path, name: str, fields: dict[str, FieldInfo]) -> list[str]:
    """Return the named values of a setting, if it has any."""
    for part in (Optimizer, Schedule):
        short = part.__name__.lower()
        if name == short or (path[1:] == (short,) and name == part.KEY):
            return registry.names(part.FOLDER)
    for section in (sections.Model, sections.Tokenizer, sections.Objective, sections.Attention):
        if path[:1] == (section.__name__.lower(),) and name == section.KEY:
            return registry.names(section.FOLDER)
    if (*path, name) == (extends.KEY,):
        return list(recipe.packaged())
    if (*path, name) == ("attention", "backend"):
        return ["auto", *registry.names(sections.BACKENDS)]
    return _list_named(fields[name].annotation) if name in fields else []


def _list_named(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for inner in get_args(annotation) for value in _list_named(inner)]
