"""Decides what a recipe with `model.size` or `model.depth` leaves open of sizes and training.

Sizes are of `models/sizes.py`, steps, batch size and learning rate of `training_defaults.py`. What
the recipe says itself is kept. torch is imported only where parameters are counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nlpkit import registry
from nlpkit.config import part_config
from nlpkit.data.files import find_path
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import sizes
from nlpkit.models.config import ModelConfig
from nlpkit.recipe import fit
from nlpkit.recipe.places import Document, Problem
from nlpkit.recipe.places import Path as KeyPath
from nlpkit.recipe.sections import TARGETS, Model, Side, Tokenizer
from nlpkit.recipe.settings import Recipe
from nlpkit.recipe.training_defaults import (
    LENGTHS,
    OTHERS,
    ROWS,
    SCHEDULE,
    SETTINGS,
    WARMUPS,
    Defaults,
    Refused,
)

# What a target may decide; of a group, all or nothing.
GROUPS: tuple[tuple[tuple[str, str], ...], ...] = (
    *((("model", name),) for name in sizes.SIZES),
    *((("train", name),) for name in OTHERS),
    tuple(("train", name) for name in LENGTHS),
    tuple(("train", name) for name in WARMUPS),
)


def apply(document: Document, base: Path) -> list[Problem]:
    """Fill in what a recipe with a target leaves open, in `document`; return what is wrong.

    The origin of what is filled in is the target. Where the recipe has mistakes anyway, little is
    filled in, and its validation names them.
    """
    _prefer_nearest(document)
    try:
        _Autosize(document, base).fill()
    except Refused as error:
        return [Problem.at(document.place(error.path), error.path, error.what)]
    return []


def _prefer_nearest(document: Document) -> None:
    """Remove sizes of the file where the command line has a target, and of a base where the file
    has one.

    So `--set model.size` and `extends` take the place of what they are built on.
    """
    model = document.data["model"]

    def level(name: str) -> int:
        return min(1, document.place(("model", name)).order)  # all of the command line are 1

    nearest = max(map(level, Model.targets(model)))
    for name in (*TARGETS, *sizes.SIZES):
        if name in model and level(name) < nearest:
            del model[name]


class _Autosize:
    """A recipe with a target, while the rest is decided."""

    def __init__(self, document: Document, base: Path):
        self.document, self.base = document, base
        self.model: JsonObject = document.data["model"]
        self.name = Model.targets(self.model)[0]
        self.path: KeyPath = ("model", self.name)
        train = document.data.get("train")
        self.train: Any = {} if train is None else train

    def fill(self) -> None:
        """Fill in the sizes, then the settings of training; raise `Refused`."""
        if len(Model.targets(self.model)) > 1:
            raise Refused(self.path, f"{' and '.join(TARGETS)} exclude each other; remove one")
        if self.document.data.get("init_from") is not None:
            raise Refused(self.path, "with init_from the sizes are the checkpoint's; remove it")
        if not isinstance(self.train, dict):
            return
        self.document.data["train"] = self.train
        for name in [n for n in SETTINGS if n in self.train and self.train[n] is None]:
            del self.train[name]
        try:
            self._decide()
        except (ValueError, UsageError):  # a mistake, which the recipe's validation names
            for name, value in self._list_stand_ins().items():
                self._set("train", name, value)

    def _decide(self) -> None:
        value = self.model[self.name]
        wanted = sizes.parse_size(value) if self.name == "size" else value
        if type(wanted) is not int or wanted < 1:
            raise ValueError
        config = part_config("models", str(self.model.get("family") or ""))
        given = {k: v for k, v in self.model.items() if k not in Model.own_in(self.model)}
        given = {k: v for k, v in given.items() if not (k in sizes.SIZES and v is None)}
        if not issubclass(config, ModelConfig) or not _is_right_alone(config, given):
            raise ValueError
        # The recipe without its model, with stand-ins for what is open in `train`.
        train = {**self.train, **self._list_stand_ins()}
        data = {**self.document.data, "model": None, "init_from": "-", "train": train}
        others = Recipe.model_validate(data)
        if not self._is_suitable(others):
            for name in sizes.SIZES:  # a wrong number of heads would be of another width
                self.model.pop(name, None)
            raise ValueError
        if self._is_complete(config):
            return
        family = self._make_family(config, given, others)
        fit_sizes = sizes.fit_to_size if self.name == "size" else sizes.fit_to_depth
        try:
            found = fit_sizes(family, wanted)
        except ValueError as error:
            raise Refused(self.path, str(error)) from error
        for name, size in found.items():
            self._set("model", name, size)
        width, layers = ({**given, **found}[name] for name in (sizes.WIDTH, sizes.LAYERS))
        defaults = Defaults(self.path, self.train, others, self.base)
        for name, chosen in defaults.choose(family, width, layers).items():
            self._set("train", name, chosen)

    def _is_complete(self, config: type[ModelConfig]) -> bool:
        return (
            all(name in self.model for name in sizes.sized_settings(config))
            and all(name in self.train for name in OTHERS)
            and all(any(name in self.train for name in each) for each in (LENGTHS, WARMUPS))
        )

    def _list_stand_ins(self) -> JsonObject:
        found = {"schedule": SCHEDULE, "steps": 1, "tokens_per_step": 1}
        if isinstance(batch := self.train.get("tokens_per_batch"), int):
            found["tokens_per_step"] = batch
        if any(name in self.train for name in LENGTHS):
            del found["steps"]
        if ROWS in self.train:
            del found["tokens_per_step"]
        return {name: value for name, value in found.items() if name not in self.train}

    def _is_suitable(self, others: Recipe) -> bool:
        text = fit.reads_text(others.objective)
        family = registry.load("models", self.model["family"])
        return text is (others.tokenizer is not None) and text is bool(family.VOCABULARY)

    def _set(self, section: str, name: str, value: object) -> None:
        place = replace(self.document.place(self.path), decides=f"model.{self.name}")
        self.document.data[section][name] = value
        self.document.places[section, name] = place

    def _make_family(
        self, config: type[ModelConfig], given: JsonObject, others: Recipe
    ) -> sizes.Family:
        vocab_size, source_size = self._count_vocabulary(others, config)
        choices = others.attention.choices
        more: JsonObject = {"attention": choices} if choices else {}
        if source_size is not None and "two_vocabularies" in config.CAN:
            more["source_vocab_size"] = source_size
        try:
            return sizes.Family(self.model["family"], config, given, more, vocab_size)
        except ValueError as error:
            raise Refused(self.path, str(error)) from error

    def _count_vocabulary(
        self, others: Recipe, config: type[ModelConfig]
    ) -> tuple[int, int | None]:
        """Return the tokens of the vocabulary, and those of sources that have their own."""
        section = others.tokenizer
        if section is None:
            return 0, None
        more = len(fit.list_special_tokens(others.objective, config.model_construct()))
        if section.sides is not None:
            source, target = (self._count_tokens(side) for side in section.sides)
            return target + more, source + more
        return self._count_tokens(section) + more, None

    def _count_tokens(self, section: Tokenizer | Side) -> int:
        if section.path is None:
            size = section.config.setting("vocab_size")
            if size is None:
                what = f"tokenizer {section.kind} has no vocab_size, which a size needs"
                raise Refused(self.path, f"{what}; set the sizes")
            return int(size)
        path = find_path(section.path, self.base)
        for kind in registry.names(Tokenizer.FOLDER):
            try:
                loaded = registry.load(Tokenizer.FOLDER, kind).Tokenizer.load(path)
                return int(loaded.vocab_size)
            except FileError:
                continue
        what = f"needs the number of tokens, and {path} has no tokenizer of nlpkit"
        raise Refused(self.path, what)


def _is_right_alone(config: type[ModelConfig], given: JsonMapping) -> bool:
    """Return whether each setting is right by itself; whether they fit depends on the sizes."""
    try:
        config.model_validate(given)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            is_open = found["type"] == "missing" and found["loc"][0] in sizes.SIZES
            if found["loc"] and not is_open:
                return False
    return True
