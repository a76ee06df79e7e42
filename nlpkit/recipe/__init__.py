"""A recipe: one YAML file with all settings of a run, checked before torch is loaded.

`parse` is the way from the file to a checked recipe. The sections are in `recipe/settings`, their
settings in the `Config` of the part that the recipe names. All mistakes are reported together, each
with its place in the file. What a recipe does not ask for, such as `extends`, is not imported.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nlpkit import registry
from nlpkit.errors import FileError, RecipeError, UsageError
from nlpkit.recipe import fit, sections, unused, yaml
from nlpkit.recipe.overrides import apply, replace_alternatives
from nlpkit.recipe.places import Document, Problem, dotted, flatten, show_path, value_at
from nlpkit.recipe.places import Path as KeyPath
from nlpkit.recipe.settings import Recipe

_PACKAGE = Path(__file__).parent.parent
COMMAND_LINE = "command line"
DEFAULT = "default"
DECIDED = "from "  # model.size, or model.depth


@dataclass(frozen=True)
class Resolved:
    """A checked recipe, and the origin of its settings.

    `base` is the folder of the recipe file; `origin` says of each setting (`model.hidden_size`)
    whether it is the `default`, from `recipes/x.yaml:12`, from the `command line`, or decided by
    `model.size`. `warnings` names each setting that has no effect.
    """

    recipe: Recipe
    base: Path
    origin: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def autosized(self) -> list[str]:
        """The settings that `model.size` or `model.depth` decides, in dotted form."""
        return sorted(key for key, origin in self.origin.items() if origin.startswith(DECIDED))

    def dump(self) -> dict[str, Any]:
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
        """Return the file or directory that a setting names, with `~` and `$HOME` replaced.

        A relative name is searched in the working directory, then in `base`. If it is in neither,
        the path in the working directory is returned.
        """
        name = re.sub(r"^\$(HOME\b|\{HOME\})", "~", name)
        path = Path(os.path.expanduser(name))
        return self.base / path if not path.exists() and (self.base / path).exists() else path


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
        from nlpkit.recipe import problems

        known = sections.list_settings(Recipe, document.data)
        found = problems.explain(error.errors(include_url=False), document, known)
        raise _refusal(mistakes + found) from error
    if mistakes := mistakes + fit.check(recipe, document):
        raise _refusal(mistakes)
    warnings = tuple(unused.list_warnings(recipe, document))
    return Resolved(recipe, base, _find_origins(recipe, document), warnings)


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
        raise RecipeError([f"{source}: an empty recipe: settings are lines like `key: value`"])
    document.data = {} if document.data is None else document.data
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise RecipeError([f"{source}:1:1: expected settings (`key: value`), got {kind}"])
    return document


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
    if path.exists() and not path.is_dir():
        return path
    names = packaged()
    if path_or_name in names:
        return names[path_or_name]
    if path.is_dir():
        raise FileError(f"{path_or_name}: is a directory, not a recipe")
    near = registry.suggest(path.stem, names)
    near = near.replace("mean ", "mean the packaged recipe ")
    raise FileError(f"{path_or_name}: no such recipe{near or '; packaged: ' + ', '.join(names)}")


def _find_origins(recipe: Recipe, document: Document) -> dict[str, str]:
    """Return the origin of every setting; see `Resolved`."""
    dump = recipe.model_dump(mode="json")
    known = sections.list_settings(Recipe, dump)
    origins = {}
    for leaf in flatten(dump):
        setting = known.get(leaf[:-1], {}).get(str(leaf[-1]))
        is_default = setting is not None and setting.default == value_at(dump, leaf)
        origins[dotted(leaf)] = _find_origin(leaf, document, is_default)
    return origins


def _find_origin(leaf: KeyPath, document: Document, is_default: bool) -> str:
    """Return the origin of a setting; `is_default`: of its value."""
    if leaf[0] == "objective" and isinstance(document.data["objective"], list):
        leaf = leaf if isinstance(leaf[1], int) else (leaf[0], 0, *leaf[1:])
    path: KeyPath = ()
    here: Any = document.data
    for step in leaf:
        if isinstance(here, dict):
            if here.get(str(step)) is None and step != leaf[-1]:
                return DEFAULT
            if step not in here:
                return DEFAULT
            here = here[step]
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            # The part's `Config` has expanded a short form.
            if is_default:
                return DEFAULT
            break
        path = (*path, step)
    place = document.place(path)
    if place.decides:
        return f"{DECIDED}{place.decides}"
    return COMMAND_LINE if place.on_command_line else f"{place.source}:{place.value[0]}"


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the settings (`train.lr`) that differ between two dumps, without free ones."""
    free = {
        (*path, name)
        for data in (old, new)
        for path, fields in sections.list_settings(Recipe, data).items()
        for name, field in fields.items()
        if sections.is_free(field)
    }
    values = [
        {path: json.dumps(value_at(data, path)) for path in flatten(data)} for data in (old, new)
    ]
    differing = [
        path for path in values[0] | values[1] if values[0].get(path) != values[1].get(path)
    ]
    return [
        dotted(path)
        for path in differing
        if not any(path[:length] in free for length in range(1, len(path) + 1))
    ]
