"""Settings that are written in a recipe, but have no effect beside the others.

They are warned of, not refused: a recipe may build on another one that says them, and there are
runs that have them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.task import Task
from nlpkit.part import Part
from nlpkit.recipe import fit
from nlpkit.recipe.places import Document, Path, Problem

if TYPE_CHECKING:
    from nlpkit.recipe.settings import Recipe

_DECODING = ("beam", "length_penalty")  # settings of `eval` for answers that are written


def list_warnings(recipe: "Recipe", document: Document) -> list[str]:
    """Return a line for each setting that is not its default and has no effect."""
    found = [
        Problem.at(document.place((*path, name)), (*path, name), f"has no effect {why}")
        for path, config, name, why in _find_unused(recipe)
        if not config.is_default(name)
    ]
    return [str(problem) for problem in sorted(found)]


def _find_unused(recipe: "Recipe") -> Iterator[tuple[Path, FrozenConfig, str, str]]:
    """Yield the place of the settings, the settings, a name among them, and why."""
    objectives = ", ".join(section.name for section in recipe.objective)
    made = fit.classes(recipe.objective)
    writes = any(issubclass(each, Task) and issubclass(each, Continues) for each in made)
    for path, config in _walk((), recipe):
        reasons = dict(config.without_effect())
        if path == ("eval",) and not writes:
            why = f"with objective {objectives}, which generates no answers"
            reasons = dict.fromkeys(_DECODING, why)
        for name, why in reasons.items():
            yield path, config, name, why


def _walk(path: Path, value: object) -> Iterator[tuple[Path, FrozenConfig]]:
    """Yield all settings in `value`, with their places."""
    if isinstance(value, tuple | list):
        single = path == ("objective",) and len(value) == 1  # a single objective has no number
        for number, each in enumerate(value):
            yield from _walk(path if single else (*path, number), each)
    elif isinstance(value, FrozenConfig):
        yield path, value
        for name in type(value).model_fields:
            inner = path if isinstance(value, Part) and name == "config" else (*path, name)
            yield from _walk(inner, getattr(value, name))
