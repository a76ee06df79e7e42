"""A recipe: one YAML file with all settings of a run, checked before torch is loaded.

This module knows the sections, but not their settings: these belong to the `Config` of the part
that the recipe names. All mistakes are reported together, each with its place in the file.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
)
from pydantic_core import PydanticCustomError

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError, RecipeError, UsageError
from nlpkit.recipe import dial, extends, files, fit, problems, sections, unused, yaml
from nlpkit.recipe.overrides import apply, replace_alternatives
from nlpkit.recipe.places import Document, Problem, dotted
from nlpkit.recipe.places import Path as KeyPath
from nlpkit.recipe.sections import Attention, Model, Objective, Tokenizer

_PACKAGE = Path(__file__).parent.parent
_FREE: dict[str, Any] = {"free": True}
COMMAND_LINE = "command line"
DEFAULT = "default"
DECIDED = "from "  # model.size, or model.depth


class Recipe(FrozenConfig):
    """The resolved recipe. `data`, `train`, `lora`, `eval`: see `sections.FIXED`."""

    extends: str | None = Field(
        None,
        exclude=True,  # `extends.complete` has put the base's settings here
        description="recipe to build on: a file, from this one's folder, or a packaged recipe",
    )
    name: str = Field(description="name of the run, and of its directory", json_schema_extra=_FREE)
    seed: int = Field(1, ge=0, lt=2**32, description="seed of all random numbers")
    out: str = Field(
        "",
        validate_default=True,
        description="run directory; default runs/NAME",
        json_schema_extra=_FREE,
    )
    init_from: str | None = Field(None, min_length=1, description="checkpoint to start from")
    init_missing: list[str] = Field(
        [],
        description="tensors that init_from may lack, by parts of their names (pooler); they are "
        "initialized at random",
    )
    model: Model | None = Field(
        None,
        validate_default=True,
        description="family and sizes; with init_from, only dropout rates",
    )
    # Before the tokenizer: whether it is needed depends on the objective.
    objective: tuple[Objective, ...] = Field(
        description="training objective, or a list of them with weights"
    )
    tokenizer: Tokenizer | None = Field(
        None,
        validate_default=True,
        description="kind: NAME to train one, or path: DIR; or source and target, one for each",
    )
    data: Any = Field(
        default_factory=dict, validate_default=True, description="files for training and evaluation"
    )
    attention: Attention = Field(
        default_factory=Attention, description="kinds of attention, and their backend"
    )
    train: Any = Field(
        default_factory=dict, validate_default=True, description="length, optimizer, checkpoints"
    )
    lora: Any = Field(
        None, description="low-rank adapters, trained instead of the model's own weights"
    )
    eval: Any = Field(
        default_factory=dict, validate_default=True, description="scores of an evaluation"
    )

    @field_validator("name")
    @classmethod
    def _directory_name(cls, name: str) -> str:
        if len(name) > 100 or not re.fullmatch(r"\w[\w.-]*(?<!\.)", name):
            raise ValueError(
                f"{problems.quote(name)} is not a safe directory name; use letters, digits, "
                "`_`, `-` and, inside, `.`, at most 100 characters"
            )
        return name

    @field_validator("out", mode="before")
    @classmethod
    def _default_out(cls, out: Any, info: ValidationInfo) -> Any:
        return f"runs/{info.data.get('name')}" if out in (None, "") else out

    @field_validator("model", "tokenizer", mode="before")
    @classmethod
    def _needed(cls, value: Any, info: ValidationInfo) -> Any:
        objectives = info.data.get("objective", ())
        if info.field_name == "tokenizer":
            text = fit.has_vocabulary(info.data.get("model"))
            if (text is False and value is None) or (
                text and objectives and not fit.reads_text(objectives)
            ):
                return value  # the objective is the mistake, if any, and is named elsewhere
        if info.field_name == "tokenizer" and objectives and not fit.reads_text(objectives):
            if value is not None:
                names = ", ".join(objective.name for objective in objectives)
                raise ValueError(f"objective {names} reads no text: remove the section tokenizer")
            return value
        if info.field_name == "tokenizer" and "objective" not in info.data:
            return value  # an objective that is wrong may read no text
        if info.data.get("init_from", "not checked") is None:
            if value is None:
                raise PydanticCustomError("missing", "missing")
        elif info.field_name == "model" and isinstance(value, dict) and value:
            return {"family": None, **value}
        return value

    @field_validator("data", "train", "eval", mode="plain")
    @classmethod
    def _fixed(cls, value: Any, info: ValidationInfo) -> Any:
        config = sections.fixed_config(str(info.field_name))
        return config.model_validate({} if value is None else value)

    @field_validator("lora", mode="plain")
    @classmethod
    def _adapters(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        if info.data.get("init_from", "not checked") is None:
            raise ValueError("needs init_from, the checkpoint that the adapters belong to")
        return sections.fixed_config("lora").model_validate(value)

    @field_validator("attention", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("objective", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("missing", "missing")
        if value == []:
            raise ValueError("must have at least 1 entry")
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    @field_validator("objective")
    @classmethod
    def _of_one_length(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        """Give objectives that follow in a list the first one's `max_length`, if they name none.

        They change its examples, so no other length has a meaning.
        """
        first, *others = objectives
        return first, *(_as_long(each, first) for each in others)

    @field_serializer("objective")
    def _one_or_more(self, objectives: tuple[Objective, ...]) -> Any:
        return objectives[0] if len(objectives) == 1 else list(objectives)


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
    return parse(files.read(path, path_or_name), files.shown(path), path.parent, overrides)


def parse(raw: bytes, source: str, base: Path, overrides: Sequence[str] = ()) -> Resolved:
    """Return the recipe in `raw` (UTF-8), called `source` in messages; see `load`."""
    document = _document(raw, source, bool(overrides))
    numbered = list(enumerate(overrides, 1))
    of_base = [each for each in numbered if each[1].partition("=")[0].strip() == extends.KEY]
    mistakes = []
    for order, override in of_base:
        mistakes += apply(document, override, order)
    document = extends.complete(document, base / Path(source).name, packaged)
    mistakes += document.problems
    for order, override in numbered:
        if (order, override) not in of_base:
            mistakes += apply(document, override, order)
    replace_alternatives(document)
    mistakes += [
        Problem.at(
            document.place(path), path, "contains a NUL character, which no setting can have"
        )
        for path in flatten(document.data)
        if isinstance(value := problems.value_at(document.data, path), str) and "\0" in value
    ]
    wrong = dial.turn(Recipe, document, base)
    if wrong:
        raise RecipeError([str(problem) for problem in sorted(mistakes + wrong)])
    recipe = None
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        known = sections.known(Recipe, document.data)
        mistakes += problems.explain(found, document, known)
    if recipe is not None:
        mistakes += fit.problems(recipe, document)
    if mistakes or recipe is None:
        raise RecipeError([str(problem) for problem in sorted(mistakes)])
    dump = recipe.model_dump(mode="json")
    known = sections.known(Recipe, dump)
    origin = {}
    for leaf in flatten(dump):
        setting = known.get(leaf[:-1], {}).get(str(leaf[-1]))
        usual = setting is not None and setting.default == problems.value_at(dump, leaf)
        origin[dotted(leaf)] = _origin(leaf, document, usual)
    return Resolved(recipe, base, origin, tuple(unused.warnings(recipe, document)))


def whole(path_or_name: str) -> str:
    """Return a recipe as YAML with all that its bases say, without defaults; see `load`."""
    load(path_or_name)  # raises what is wrong in it
    path = find(path_or_name)
    document = _document(files.read(path, path_or_name), files.shown(path), False)
    document = extends.complete(document, path, packaged)
    replace_alternatives(document)
    return yaml.write({"name": document.data["name"]} | document.data)


def _document(raw: bytes, source: str, may_be_empty: bool) -> Document:
    """Return the settings in one file; raise `RecipeError`."""
    document = yaml.read(yaml.decode(raw, source), source)
    if document.data is None and not may_be_empty:
        raise RecipeError([f"{source}: an empty recipe: settings are lines like `key: value`"])
    document.data = {} if document.data is None else document.data
    if not isinstance(document.data, dict):
        raise RecipeError(
            [f"{source}:1:1: expected settings (`key: value`), got {_kind(document)}"]
        )
    return document


def _kind(document: Document) -> str:
    return "a list" if isinstance(document.data, list) else "a single value"


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


def _as_long(section: Objective, first: Objective) -> Objective:
    """Return the section with the `max_length` of the first, where it names none."""
    config = section.config
    length = getattr(first.config, "max_length", None)
    if length is None or "max_length" not in {*type(config).model_fields} - config.model_fields_set:
        return section
    return section.model_copy(update={"config": config.model_copy(update={"max_length": length})})


def flatten(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every value in plain data; an empty list or mapping is a value."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from flatten(value, (*path, index))
    else:
        yield path


def _origin(leaf: KeyPath, document: Document, usual: bool) -> str:
    """Return the origin of a setting; `usual`: its value is the default."""
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
            if usual:
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
        for path, fields in sections.known(Recipe, data).items()
        for name, field in fields.items()
        if sections.is_free(field)
    }
    values = [
        {path: json.dumps(problems.value_at(data, path)) for path in flatten(data)}
        for data in (old, new)
    ]
    differing = [
        path for path in values[0] | values[1] if values[0].get(path) != values[1].get(path)
    ]
    return [
        dotted(path)
        for path in differing
        if not any(path[:length] in free for length in range(1, len(path) + 1))
    ]
