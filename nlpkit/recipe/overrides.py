"""`--set section.key=value`: a change to a recipe from the command line."""

from dataclasses import replace
from typing import Any

from nlpkit.errors import RecipeError
from nlpkit.recipe import yaml
from nlpkit.recipe.places import Document, Path, Place, Problem, dotted


def apply(document: Document, override: str, order: int) -> list[Problem]:
    """Put one `section.key=value` into the document; return what is wrong with it."""
    name, equals, value = override.partition("=")
    name = name.strip()
    source = f"--set {name}"
    place = Place(source, order)
    if not equals or not all(name.split(".")):
        what = "expected section.key=value, such as train.steps=100"
        return [Problem(order, (1, 1), f"--set {override}", "", what)]
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
            here = here[key]
    here[key] = given.data
    for old in [old for old in document.places if old[: len(path)] == path]:
        del document.places[old]
    document.places |= {path + inner: place for inner, place in given.places.items()}
    return [replace(each, path=dotted((*path, each.path))) for each in given.problems]
