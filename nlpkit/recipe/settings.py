"""The class `Recipe`: the sections of a recipe, and which of them it needs.

The sections of parts are in `recipe/sections`; the settings of the others in the file that reads
them.
"""

import re
from typing import Any

from pydantic import Field, ValidationInfo, field_serializer, field_validator
from pydantic_core import PydanticCustomError

from nlpkit.config import FrozenConfig
from nlpkit.data.settings import Config as DataConfig
from nlpkit.models import adapter_config
from nlpkit.recipe import fit
from nlpkit.recipe.places import quote
from nlpkit.recipe.sections import Attention, Model, Objective, Tokenizer
from nlpkit.score import settings as evaluation
from nlpkit.train import settings as training


class Recipe(FrozenConfig):
    """The resolved recipe."""

    extends: str | None = Field(
        None,
        exclude=True,  # `extends.complete` has put the base's settings here
        description="recipe to build on: a file, from this one's folder, or a packaged recipe",
    )
    name: str = Field(
        description="name of the run, and of its directory", json_schema_extra=training.FREE
    )
    seed: int = Field(1, ge=0, lt=2**32, description="seed of all random numbers")
    out: str = Field(
        "",
        validate_default=True,
        description="run directory; default runs/NAME",
        json_schema_extra=training.FREE,
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
    data: DataConfig = Field(
        None, validate_default=True, description="files for training and evaluation"
    )
    attention: Attention = Field(
        default_factory=Attention, description="kinds of attention, and their backend"
    )
    train: training.Config = Field(
        None, validate_default=True, description="length, optimizer, checkpoints"
    )
    lora: adapter_config.Config | None = Field(
        None, description="low-rank adapters, trained instead of the model's own weights"
    )
    prompt: adapter_config.Prompt | None = Field(
        None, description="virtual tokens of train.tune: prompt"
    )
    eval: evaluation.Config = Field(
        None, validate_default=True, description="scores of an evaluation"
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if len(name) > 100 or not re.fullmatch(r"\w[\w.-]*(?<!\.)", name):
            raise ValueError(
                f"{quote(name)} is not a safe directory name; use letters, digits, "
                "`_`, `-` and, inside, `.`, at most 100 characters"
            )
        return name

    @field_validator("out", mode="before")
    @classmethod
    def _fill_out(cls, out: object, info: ValidationInfo) -> object:
        return f"runs/{info.data.get('name')}" if out in (None, "") else out

    @field_validator("model", mode="before")
    @classmethod
    def _check_model(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("init_from", "wrong") is None:
            return _require(value)
        return {"family": None, **value} if isinstance(value, dict) and value else value

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _check_tokenizer(cls, value: object, info: ValidationInfo) -> object:
        objectives = info.data.get("objective")
        if not objectives:
            return value  # an objective that is wrong may read no text
        text = fit.has_vocabulary(info.data.get("model"))
        if fit.reads_text(objectives):
            needed = text is not False and info.data.get("init_from", "wrong") is None
            return _require(value) if needed else value
        if value is not None and not text:  # with a vocabulary, `fit` names the objective
            names = ", ".join(objective.name for objective in objectives)
            raise ValueError(f"objective {names} reads no text: remove the section tokenizer")
        return value

    @field_validator("data", "train", "eval", "attention", mode="before")
    @classmethod
    def _fill_section(cls, value: object) -> object:
        return {} if value is None else value

    @field_validator("lora", mode="before")
    @classmethod
    def _check_lora(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("init_from", "wrong") is None:
            raise ValueError("needs init_from, the checkpoint that the adapters belong to")
        return value

    @field_validator("objective", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        if _require(value) == []:
            raise ValueError("must have at least 1 entry")
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    @field_validator("objective")
    @classmethod
    def _share_max_length(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        """Give objectives that follow in a list the first one's `max_length`, if they name none.

        They change its examples, so no other length has a meaning.
        """
        first, *others = objectives
        return first, *(each.with_max_length_of(first) for each in others)

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        return {} if self.train.tune == "prompt" else {"prompt": "with train.tune: all"}

    @field_serializer("objective")
    def _one_or_more(self, objectives: tuple[Objective, ...]) -> Any:
        return objectives[0] if len(objectives) == 1 else list(objectives)


def _require(value: object) -> object:
    if value is None:
        raise PydanticCustomError("missing", "missing")
    return value
