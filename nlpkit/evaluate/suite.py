"""The file of a suite: tasks that one base is tuned on. Imports no torch.

A task is a recipe with settings of its own, over those that the suite has for all tasks.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from nlpkit import recipe as recipes
from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.data.files import expand
from nlpkit.disk import user_path
from nlpkit.errors import FileError, RecipeError
from nlpkit.json_types import JsonObject
from nlpkit.recipe import known, problems, yaml
from nlpkit.recipe.places import Document, dotted, show_path, undotted
from nlpkit.recipe.sections import Model
from nlpkit.train.settings import Config

_File = TypeVar("_File", bound=FrozenConfig)
_PACKAGE = Path(__file__).parent.parent
# The sections of a recipe -> the setting that names the part which their others belong to.
_PARTS = {"data": None, "objective": "name", "train": None, "eval": None, "model": "family"} | {
    "tokenizer": "kind", "attention": "kind", "lora": None,
}  # fmt: skip
_FILES = {"data": ("train", "valid"), "eval": ("pairs",)}


class Sections(FrozenConfig):
    """Changes to the sections of a recipe, setting by setting."""

    data: dict[str, Any] = Field({})
    objective: dict[str, Any] = Field({}, description="with a name, it is the whole section")
    train: dict[str, Any] = Field({})
    eval: dict[str, Any] = Field({})


class TaskEntry(Sections):
    """A task; in the file also its recipe alone."""

    recipe: str = Field(min_length=1, description="recipe of the task: a file, or a packaged one")
    name: str = Field("", pattern=r"^(\w[\w.-]*)?$", description="default: that of the recipe")

    @model_validator(mode="before")
    @classmethod
    def _may_be_recipe(cls, value: object) -> object:
        return {"recipe": value} if isinstance(value, str) else value

    @property
    def title(self) -> str:
        """The name of the task."""
        return self.name or Path(self.recipe).stem


def _check_rates(rates: list[float]) -> list[float]:
    if len(rates) < 2 or rates != sorted(set(rates)) or rates[0] <= 0:
        raise ValueError("expected two or more rates that rise, such as [5e-4, 1e-3, 2e-3]")
    return rates


Rates = Annotated[list[float], AfterValidator(_check_rates)]


class Settings(FrozenConfig):
    """The section `suite`."""

    tasks: list[TaskEntry] = Field(min_length=1, description="recipes of tasks")
    seeds: int = Field(3, gt=0, description="runs of each task, as many from nothing")
    start: str | None = Field(None, alias="from", description="the base: a run or a checkpoint")
    folder: str = Field("", description="folder of the files in data.train and data.valid here")
    rates: Rates | None = Field(
        None, description="learning rates to try for each side of a task; default: its recipe's"
    )
    max_rows: int | None = Field(
        None, ge=1, description="first rows of each file in data.train here; default: all"
    )


class Suite(Sections):
    """The file."""

    name: str = Field(pattern=r"^\w[\w.-]*$", description="name of the suite")
    suite: Settings = Field(description="tasks, seeds, and the base")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [task.title for task in self.suite.tasks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"suite: tasks: {twice[0]} is there twice; give each a name")
        whole = [task.title for task in self.suite.tasks if "train" not in self.data | task.data]
        if whole and self.suite.max_rows is not None:
            raise ValueError(f"suite: max_rows: {whole[0]} names no data.train here to shorten")
        return self

    def list_changes(self, task: TaskEntry, folder: str, given: Sequence[str]) -> list[str]:
        """Return the settings of a task, as `--set` takes them, then those of the command line.

        `folder` has the task's data.
        """
        changes = {"name": task.title} | list_settings([self, task], folder, replaces=False)
        if self.suite.max_rows is not None and "data.train" in changes:
            files = [e if isinstance(e, dict) else {"files": e} for e in changes["data.train"]]
            changes["data.train"] = [{"max_rows": self.suite.max_rows} | each for each in files]
        named = {each.partition("=")[0].strip() for each in given}
        for names in Config.ALTERNATIVES:
            if named & (keys := {f"train.{name}" for name in names}):
                changes = {key: value for key, value in changes.items() if key not in keys}
        return [*(f"{key}={json.dumps(value)}" for key, value in changes.items()), *given]


def without_target(dump: JsonObject) -> JsonObject:
    """Return what a recipe says without `model.size` or `depth`, whose sizes are in it, too.

    Else they would also decide the settings of a training on this model.
    """
    gone = Model.targets(dump["model"])
    if not gone:
        return dump
    return dump | {"model": {k: v for k, v in dump["model"].items() if k not in gone}}


def list_settings(
    sections: Sequence[Sections], folder: str, replaces: bool = True
) -> dict[str, Any]:
    """Return the settings of sections by dotted key, the later ones over the earlier.

    `folder` has their files. With `replaces` a section that names its part stands alone; without,
    it also has what was said before, as `objective: {lm_weight: 0}` for all tasks of a suite.
    """
    changes: dict[str, Any] = {"train.eval_every": None}
    for section, part in _PARTS.items():
        values: dict[str, Any] = {}
        for each in sections:
            own = getattr(each, section, None) or {}
            values = {**own} if replaces and part in own else values | own
        for key in _FILES.get(section, ()):
            if (files := values.get(key)) is not None:
                files = files if isinstance(files, list) else [files]
                values[key] = [_place(folder, file) for file in files]
        if section == "lora":  # {}: the defaults; null: none
            if said := [each for each in sections if section in each.model_fields_set]:
                changes[section] = None if getattr(said[-1], section) is None else values
            continue
        whole = part in values
        changes |= {section: values} if whole else {f"{section}.{k}": values[k] for k in values}
    return changes


def _place(folder: str, entry: object) -> object:
    """Return an entry of `data.train`, or a list, with its relative names as those of `folder`."""
    if isinstance(entry, list):
        return [_place(folder, each) for each in entry]
    if isinstance(entry, dict):
        return entry | {k: _place(folder, entry[k]) for k in ("files", "hf") if k in entry}
    is_relative = isinstance(entry, str) and not os.path.isabs(expand(entry))
    return os.path.join(folder, str(entry)) if is_relative else entry


def load(path_or_name: str, overrides: Sequence[str] = ()) -> tuple[Suite, Document]:
    """Return the suite in a file, or the shipped one of that name, with changes, and its places.

    Raises:
        FileError: there is no such file.
        RecipeError: every mistake in it.
    """
    shipped = _PACKAGE / "_shipped" / "suites"
    folder = shipped if shipped.is_dir() else _PACKAGE.parent / "suites"
    names = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    path = names.get(path_or_name, user_path(path_or_name))
    if not path.is_file():
        near = registry.suggest(path_or_name, names) or f"; shipped: {', '.join(names)}"
        raise FileError(f"{path_or_name}: no such suite{near}")
    return read(path, path_or_name, Suite, overrides)


def place(
    problem: str,
    *,
    entry: tuple[str | int, ...],
    title: str,
    document: Document,
    given: Sequence[str] = (),
) -> str:
    """Return a problem of the recipe of an entry with the line of the file that says it.

    One that no line says begins with the title: of the recipe's own file, or of `given` on the
    command line.
    """
    key, colon, what = problem.removeprefix("--set ").partition(": ")
    of_file = colon and key not in {each.partition("=")[0].strip() for each in given}
    if what.startswith(f"{key}."):  # the setting within the value that is wrong
        key, _, what = what.partition(": ")
    paths = [(*entry, *undotted(key)), undotted(key)]
    for path in [path for path in paths if path in document.places] or paths:
        if of_file and (path in document.places or path[:-1] in document.places):
            return document.locate(f"{dotted(path)}: {what}")
    return f"{title}: {problem}"


def read(
    path: Path, shown: str, kind: type[_File], overrides: Sequence[str] = ()
) -> tuple[_File, Document]:
    """Return what a file of a suite or an experiment says, and where; changes of it are applied.

    Raises:
        FileError: it cannot be read.
        RecipeError: every mistake in it.
    """
    document = recipes.read(yaml.read_file(path, shown), show_path(path))
    mistakes = list(document.problems)
    for order, override in enumerate(overrides, 1):
        mistakes += recipes.apply(document, override, order)
    try:
        found = kind.model_validate(document.data)
    except ValidationError as error:
        settings = known.list_settings(document.data, kind)
        mistakes = mistakes + problems.explain(error.errors(include_url=False), document, settings)
    if mistakes:
        raise RecipeError([str(each) for each in sorted(mistakes)])
    return found, document
