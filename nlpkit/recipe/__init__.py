"""A recipe: one YAML file with all settings of a run, checked before torch is loaded.

`parse` is the way from the file to a checked recipe. The sections are in `recipe/settings`, their
settings in the `Config` of the part that the recipe names. All mistakes are reported together, each
with its place in the file. What a recipe does not ask for, such as `extends`, is not imported.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from nlpkit import registry
from nlpkit.config import FrozenConfig, Part
from nlpkit.contracts.objective import ModelSettings
from nlpkit.data.files import find_path
from nlpkit.errors import FileError, RecipeError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.recipe import fit, sections, yaml
from nlpkit.recipe.overrides import apply, replace_alternatives
from nlpkit.recipe.places import Document, Problem, dotted, show_path
from nlpkit.recipe.places import Path as KeyPath
from nlpkit.recipe.settings import Recipe

_PACKAGE = Path(__file__).parent.parent
# Values of `Resolved.origin`.
COMMAND_LINE = "command line"
DEFAULT = "default"
DECIDED = "from "  # model.size, or model.depth
_UNUSED: dict[KeyPath, dict[str, str]] = {("data", "valid"): {"weight": "on held-out files"}}
_NOTHING = "where nothing is held out, and so nothing is evaluated"
_UNEVALUATED: dict[KeyPath, dict[str, str]] = {
    ("train",): {"eval_every": _NOTHING, "best_by": _NOTHING, "patience": _NOTHING},
    ("eval",): {"baseline": _NOTHING},
}


@dataclass(frozen=True)
class Resolved:
    """A checked recipe, and the origin of its settings.

    `base` is the folder of the recipe file; `origin` says of each setting (`model.hidden_size`)
    whether it is the `default`, from `recipes/x.yaml:12`, from the `command line`, or decided by
    `model.size`, or, as `decided` says, later. `warnings` names each setting that has no effect.
    """

    recipe: Recipe
    base: Path
    document: Document
    warnings: tuple[str, ...] = ()
    decided: dict[str, str] = field(default_factory=dict)

    @cached_property
    def origin(self) -> dict[str, str]:
        """The origin of each setting."""
        from nlpkit.recipe.known import find_origins

        return find_origins(self.recipe, self.document) | self.decided

    @property
    def autosized(self) -> list[str]:
        """The settings that `model.size` or `model.depth` decides, in dotted form."""
        return sorted(dotted(key) for key, place in self.document.places.items() if place.decides)

    def with_sections(self, **sections: object) -> "Resolved":
        """Return the recipe with these sections, which are checked already."""
        return replace(self, recipe=self.recipe.model_copy(update=sections))

    def dump(self) -> JsonObject:
        """Return all settings as plain data, with defaults."""
        return self.recipe.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return YAML that loads as an equal recipe."""
        content, model = self.dump(), self.recipe.model
        if self.recipe.init_from is not None and model is not None and model.family is not None:
            unnamed = type(model.config).model_fields.keys() - model.config.model_fields_set
            for name in unnamed:  # the checkpoint has them, with other values than the defaults
                content["model"].pop(name, None)
        return yaml.write(content)

    def path(self, name: str) -> Path:
        """Return the file or directory that a setting names: see `data.files.find_path`."""
        return find_path(name, self.base)


def load(path_or_name: str, overrides: Sequence[str] = ()) -> Resolved:
    """Return the recipe in a file, or the packaged recipe of that name, with `overrides` applied.

    An override is `section.key=value`, the value in YAML; a later one wins. Raises `FileError`,
    and `RecipeError` with every mistake.
    """
    path = find(path_or_name)
    return parse(yaml.read_file(path, path_or_name), show_path(path), path.parent, overrides)


def parse(raw: bytes, source: str, base: Path, overrides: Sequence[str] = ()) -> Resolved:
    """Return the recipe in `raw` (UTF-8), called `source` in messages; see `load`."""
    document, mistakes = _read_all(raw, source, base, overrides)
    if sections.Model.targets(document.data.get("model")):
        from nlpkit.recipe import autosize

        if wrong := autosize.apply(document, base):
            raise _refusal(mistakes + wrong)
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        from nlpkit.recipe import known, problems

        settings = known.list_settings(document.data)
        found = problems.explain(error.errors(include_url=False), document, settings)
        raise _refusal(mistakes + found) from error
    if mistakes := mistakes + fit.check(recipe, document):
        raise _refusal(mistakes)
    return Resolved(recipe, base, document, list_warnings(recipe, document))


def _refusal(mistakes: list[Problem]) -> RecipeError:
    return RecipeError([str(problem) for problem in sorted(mistakes)])


def _read_all(
    raw: bytes, source: str, base: Path, overrides: Sequence[str]
) -> tuple[Document, list[Problem]]:
    """Return the settings of a file, of the recipes that it extends, and of the command line."""
    document = read(raw, source, bool(overrides))
    numbered = list(enumerate(overrides, 1))
    of_base = [each for each in numbered if each[1].partition("=")[0].strip() == "extends"]
    mistakes = [wrong for order, each in of_base for wrong in apply(document, each, order)]
    if document.data.get("extends") is not None:
        from nlpkit.recipe import extends

        document = extends.complete(document, base / Path(source).name)
    mistakes += document.problems
    for order, override in numbered:
        if (order, override) not in of_base:
            mistakes += apply(document, override, order)
    replace_alternatives(document)
    return document, mistakes


def read(raw: bytes, source: str, may_be_empty: bool = False) -> Document:
    """Return what one file says, not checked; raise `RecipeError` if it holds no settings."""
    document = yaml.read(raw, source)
    if document.data is None and not may_be_empty:
        raise RecipeError([f"{source}: an empty file: settings are lines like `key: value`"])
    document.data = {} if document.data is None else document.data
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise RecipeError([f"{source}:1:1: expected settings (`key: value`), got {kind}"])
    return document


def list_warnings(
    recipe: Recipe, document: Document, model: ModelSettings | None = None
) -> tuple[str, ...]:
    """Return a line for each setting that is not its default and has no effect.

    Not refused: a recipe may build on another one that says it. `model` is that of `init_from`.
    """
    found = []
    made = fit.classes(recipe.objective)
    if recipe.model and recipe.model.family:
        model = fit.with_attention(recipe.model.config, recipe.attention.choices)
    unused = _UNUSED if recipe.data.valid or recipe.data.valid_fraction else _UNEVALUATED
    for path, config in _walk((), recipe):
        reasons = {**config.unread(model, made), **unused.get(path[:2], {})}
        for name in [name for name in reasons if not config.is_default(name)]:
            at = (*path, name)
            found.append(Problem.at(document.place(at), at, f"has no effect {reasons[name]}"))
    if recipe.attention.layers or len(recipe.objective) > 1:
        from nlpkit.recipe.alternatives import find_idle

        found += find_idle(recipe, model, document)
    return tuple(map(str, sorted(found)))


def _walk(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, FrozenConfig]]:
    if isinstance(value, tuple | list):
        single = path == ("objective",) and len(value) == 1  # a single objective has no number
        for number, each in enumerate(value):
            yield from _walk(path if single else (*path, number), each)
    elif isinstance(value, FrozenConfig):
        yield path, value
        for name in type(value).model_fields:
            inner = path if isinstance(value, Part) and name == "config" else (*path, name)
            yield from _walk(inner, getattr(value, name))


def packaged() -> dict[str, Path]:
    """Return the recipes of nlpkit, by name."""
    shipped = _PACKAGE / "_shipped" / "recipes"
    folder = shipped if shipped.is_dir() else _PACKAGE.parent / "recipes"
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find(path_or_name: str) -> Path:
    """Return the file of a recipe given by path or by packaged name; raise `FileError`."""
    if not path_or_name:
        raise UsageError("RECIPE is empty; give a file, or the name of a packaged recipe")
    path = Path(os.path.expanduser(path_or_name))
    if os.path.lexists(path) and not path.is_dir():  # opening a broken link says what is wrong
        return path
    names = packaged()
    if path_or_name in names:
        return names[path_or_name]
    if path.is_dir():
        raise FileError(f"{path_or_name}: is a directory, not a recipe")
    raise FileError(f"{path_or_name}: no such recipe{_suggest(path, names)}")


def _suggest(path: Path, names: Collection[str]) -> str:
    """Return the nearest file beside a path that has an ending, or the nearest packaged recipe."""
    beside = [str(file) for file in path.parent.glob("*.y*ml")] if path.suffix else ()
    inside = [name for name in names if name.endswith(f"/{path.stem}")]
    whole = registry.suggest(path.as_posix(), names) if path.parent.name else ""
    near = whole or registry.suggest(path.stem, inside or names)
    near = near.replace("mean ", "mean the packaged recipe ")
    return registry.suggest(str(path), beside) or near or "; the packaged ones: nlpkit recipes"
