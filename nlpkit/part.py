"""A part of a recipe that is chosen by name: its own settings, and those of the module it names."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    SerializationInfo,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError

NAME_ALONE = "name_alone"  # type of the error where a part is given by its name, not as settings


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
    KEY: ClassVar[str]
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
    def own_in(cls, value: Mapping[str, Any]) -> list[str]:
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
    def _apart(cls, value: Any) -> Any:
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
    def _checked(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.data.get(cls.KEY)
        if name is None or isinstance(value, BaseModel):
            return value
        return part_config(cls.FOLDER, name).model_validate(value)

    @model_serializer(mode="plain")
    def _flat(self, info: SerializationInfo) -> dict[str, Any]:
        own = {key: getattr(self, key) for key in type(self).own()}
        settings = self.config or {}
        if isinstance(settings, BaseModel):
            settings = settings.model_dump(mode=info.mode)
        return {key: value for key, value in own.items() if value is not None} | settings
