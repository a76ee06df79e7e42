"""`--set section.key=value`: a change to a recipe from the command line."""

import json
import re
from dataclasses import replace
from typing import Any

from nlpkit.config import FrozenConfig
from nlpkit.errors import RecipeError
from nlpkit.recipe import yaml
from nlpkit.recipe.places import Document, Path, Place, Problem, dotted
from nlpkit.recipe.sections import config_classes
from nlpkit.recipe.settings import Recipe


def apply(document: Document, override: str, order: int) -> list[Problem]:
    """Apply one `section.key=value` to the document; return its mistakes."""
    name, equals, value = override.partition("=")
    name = name.strip()
    source = f"--set {name}"
    place = Place(source, order)
    if not equals or not all(name.split(".")):
        what = "expected section.key=value, such as train.steps=100"
        return [Problem(order, (1, 1), f"--set {override}", "", what)]
    if value.strip() == "-":  # standard input; YAML reads a list of one null
        value = '"-"'
    elif re.match(r"\s*\{\w+\}", value):  # begins with a field of a template; YAML reads a mapping
        value = json.dumps(value.strip(), ensure_ascii=False)
    try:
        given = yaml.read(value, source, order)
    except RecipeError as error:
        what = error.problems[0].removeprefix(f"{source}: ")
        return [Problem(order, (1, 1), source, "", what)]
    path: Path = ()
    here: Any = document.data
    steps = name.split(".")
    for index, step in enumerate(steps):
        key: str | int = step
        if isinstance(here, list):
            if not step.isdecimal() or int(step) >= len(here):
                what = f"{dotted(path)} is a list with the entries 0 to {len(here) - 1}"
                return [Problem.at(place, (), what if here else f"{dotted(path)} is an empty list")]
            key = int(step)
        elif not isinstance(here, dict):
            return [Problem.at(place, (), f"{dotted(path)} is a single value, not a section")]
        path = (*path, key)
        if index < len(steps) - 1:
            if isinstance(here, dict) and here.get(step) is None:
                here[step] = {}
                document.places[path] = place
            elif isinstance(here[key], str) and (own := key_of_short_form(path)):
                here[key] = {own: here[key]}
            here = here[key]
    here[key] = given.data
    document.forget(path)
    document.places |= {path + inner: place for inner, place in given.places.items()}
    inside = dotted(path)
    return [replace(each, path=f"{inside}.{each.path}".rstrip(".")) for each in given.problems]


def key_of_short_form(path: Path) -> str | None:
    """Return the key of a part that may be given by its name alone, such as `train.optimizer`."""
    parts = _find_classes(path) if len(path) == 2 else []
    return "name" if any("name" in part.model_fields for part in parts) else None


def _find_classes(path: Path) -> list[type[FrozenConfig]]:
    """Return the classes of settings that a recipe may have at `path`."""
    found: list[type[FrozenConfig]] = [Recipe]
    for step in path:
        fields = [each.model_fields.get(str(step)) for each in found]
        found = [one for field in fields if field for one in config_classes(field.annotation)]
    return found


def replace_alternatives(document: Document) -> None:
    """Remove settings for which a later recipe, or the command line, has an alternative."""
    for section, settings in document.data.items():
        if not isinstance(settings, dict):
            continue
        for names in [names for each in _find_classes((section,)) for names in each.ALTERNATIVES]:
            given = [name for name in names if settings.get(name) is not None]
            # All of the command line is one level.
            level = {name: min(document.place((section, name)).order, 1) for name in given}
            for name in given:
                if level[name] < max(level.values()):
                    del settings[name]
                    document.forget((section, name))
