"""The base of every part's `Config`: frozen, strict, unknown keys refused; and of every `Part`.

Strict types because YAML's surprises (`yes`, `1_0`, quoted numbers) should be named, not guessed:
an int may stand for a float, nothing else is converted. Paths are `str`.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError

from nlpkit import registry
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives

NAME_ALONE = "name_alone"  # type of the error where a part is given by its name, not as settings
# Far above any model. Within them the bytes of a tensor are a number that torch can have.
Size = Annotated[int, Field(gt=0, le=2**20)]
Layers = Annotated[int, Field(gt=0, le=1000)]
VocabSize = Annotated[int, Field(le=10_000_000)]
Workers = Annotated[int, Field(le=1024)]
# `length ** this` is a number, and not 0, for every length.
LengthPenalty = Annotated[float, Field(ge=-20, le=20)]
# What a beam's log-probability is divided by: length ** penalty, or Google's (Wu et al. 2016,
# arXiv:1609.08144, eq. 14; Vaswani et al. 2017), ((5 + length) / 6) ** penalty.
LengthPenaltyForm = Literal["power", "gnmt"]
# The limits of a number that has none of its own: an int is one of C, and a float times the factors
# of optimizers is still one of torch (float32).
LARGEST: dict[str, float] = {"int": 2**31 - 1, "float": 1e30}


def _limit(schema: object) -> None:
    """Give each number in a core schema that has no upper limit its `LARGEST`."""
    if isinstance(schema, list):
        for each in schema:
            _limit(each)
    elif isinstance(schema, dict):
        if str(schema.get("type")) in LARGEST and not {"le", "lt"} & schema.keys():
            schema["le"] = LARGEST[schema["type"]]  # not that of a setting `type`, a mapping
        for each in schema.values():
            _limit(each)


class FrozenConfig(BaseModel):
    """Settings of one part of a recipe; must be importable without torch."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    # Settings that exclude each other: with `--set`, one takes the place of the others.
    ALTERNATIVES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # Values of settings in runs and checkpoints that are older than the setting.
    EARLIER: ClassVar[JsonMapping] = {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _limit(schema)
        return schema

    def without_effect(self) -> Mapping[str, str]:
        """Return the settings that change nothing beside the others, each with the reason.

        A reason goes on `has no effect …`. Whoever sets one to more than its default is warned.
        """
        return {}

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> Mapping[str, str]:
        """Return `without_effect`, and what the model, if it is known, or the objectives ignore."""
        return self.without_effect()

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting that only some parts have, or the default where this one has not."""
        return vars(self).get(name, default)

    def is_default(self, name: str) -> bool:
        """Return whether a setting has its default, given or not."""
        return getattr(self, name) == type(self).model_fields[name].default


class NoSettings(FrozenConfig):
    """The settings of a part that has none of its own."""


def part_config(folder: str, name: str) -> type[FrozenConfig]:
    """Return the `Config` of the part `name` of `folder`; raise `UsageError`."""
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise UsageError(f"no {name!r}; known: {', '.join(registry.names(folder))}")
    config = getattr(registry.load(folder, name), "Config", None)
    if not (isinstance(config, type) and issubclass(config, FrozenConfig)):
        raise UsageError(f"the module {name!r} has no `class Config(FrozenConfig)`")
    return config


def name_in(folder: str) -> AfterValidator:
    """Return the check that a setting names a part of `folder`."""

    def check(name: str) -> str:
        try:
            part_config(folder, name)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return name

    return AfterValidator(check)


class Part(FrozenConfig):
    """A part chosen by name: what the recipe says about it itself, and `config`, its `Config`."""

    FOLDER: ClassVar[str]
    KEY: ClassVar[str] = "name"
    # Whether the name alone may be written in place of the settings.
    SHORT: ClassVar[bool] = False
    if TYPE_CHECKING:
        # Each part declares it after its own settings, because fields are checked in order.
        config: Any

    @classmethod
    def own(cls) -> dict[str, FieldInfo]:
        """Return the settings that belong to the recipe, not to the part."""
        return {name: field for name, field in cls.model_fields.items() if name != "config"}

    @classmethod
    def own_in(cls, value: JsonMapping) -> list[str]:
        """Return the names of `own` that are the recipe's in this section, too."""
        return list(cls.own())

    @classmethod
    def config_of(cls, value: Any) -> type[FrozenConfig] | None:
        """Return the `Config` of the part that the section `value` names, if there is one."""
        name = value.get(cls.KEY)
        try:
            return part_config(cls.FOLDER, name) if isinstance(name, str) else None
        except UsageError:
            return None

    @model_validator(mode="before")
    @classmethod
    def _separate_config(cls, value: Any) -> Any:
        if isinstance(value, str) and cls.SHORT:
            value = {cls.KEY: value}
        if isinstance(value, str):  # the name alone
            by_path = "path" in cls.model_fields and value not in registry.names(cls.FOLDER)
            key = "path" if by_path else cls.KEY
            raise PydanticCustomError(NAME_ALONE, "expected settings", {"key": key})
        if not isinstance(value, dict) or isinstance(value.get("config"), BaseModel):
            return value
        own = {key: value[key] for key in cls.own_in(value) if key in value}
        return {**own, "config": {key: value[key] for key in value if key not in own}}

    @field_validator("config", mode="plain", check_fields=False)
    @classmethod
    def _validate_config(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.data.get(cls.KEY)
        if name is None or isinstance(value, BaseModel):
            return value
        return part_config(cls.FOLDER, name).model_validate(value)

    @model_serializer(mode="plain")
    def _serialize(self, info: SerializationInfo) -> JsonObject:
        own = {key: getattr(self, key) for key in type(self).own()}
        settings = self.config or {}
        if isinstance(settings, BaseModel):
            settings = settings.model_dump(mode=info.mode)
        return {key: value for key, value in own.items() if value is not None} | settings
