"""Completion in shells: values of options and arguments, which declare them by `autocompletion`.

`commands/_completion` answers the script of a shell (`scripts`). What is not known is left to the
shell, which completes file names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nlpkit.recipe.places import Document

Offers = list[tuple[str, str]]  # values and their descriptions


def list_recipes() -> Offers:
    """Return the packaged recipes."""
    from nlpkit.recipe import packaged

    found = []
    for name, path in packaged().items():
        with open(path, encoding="utf-8") as file:
            found.append((name, file.readline().strip("# \n")))
    return found


def list_printed() -> Offers:
    """Return what `nlpkit recipes` prints."""
    return [
        *list_recipes(),
        ("schema", "the JSON schema of recipes"),
        ("parts", "which objective trains which family, and every part"),
    ]


def list_scores(incomplete: str) -> Offers:
    """Return the scores, each after those that are already typed, with commas between."""
    from nlpkit import registry
    from nlpkit.score.parsing import FOLDER

    before = incomplete.rpartition(",")[0]
    names = [name for name in registry.names(FOLDER) if name not in before.split(",")]
    start = f"{before}," if before else ""
    return [(start + name, registry.about(FOLDER, name)) for name in names]


def list_settings(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield `section.` and `section.key=` of the recipe on the line (`ctx`), with descriptions."""
    from nlpkit.recipe import known, overrides

    given = ctx.params
    document = _read_recipe(given.get("recipe"))
    for order, override in enumerate(given.get("overrides") or [], 1):
        overrides.apply(document, override, order)
    inside = incomplete.split(".")[:-1]
    path = tuple(int(step) if step.isdecimal() else step for step in inside)
    # Without the other sections, whose parts would be imported.
    data = {name: value for name, value in document.data.items() if [name] == inside[:1]}
    settings = known.list_settings(data)
    before = "".join(f"{step}." for step in inside)
    for setting, field in settings.get(path, {}).items():
        has_more = any(other[: len(path) + 1] == (*path, setting) for other in settings)
        yield f"{before}{setting}{'.' if has_more else '='}", field.description or ""


def _read_recipe(name: str | None) -> "Document":
    """Return the recipe without validation; an empty one if it cannot be read."""
    from nlpkit import recipe
    from nlpkit.errors import NlpkitError
    from nlpkit.recipe import extends, yaml

    try:
        path = recipe.find(name or "")
        return extends.complete(recipe.read(yaml.read_file(path, str(path)), str(path)), path)
    except (NlpkitError, OSError, ValueError):
        return yaml.read("{}", "")
