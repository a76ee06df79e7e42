"""The base of every part's `Config`: frozen, strict, unknown keys refused.

Strict types because YAML's surprises (`yes`, `1_0`, quoted numbers) should be named, not guessed:
an int may stand for a float, nothing else is converted. Paths are `str`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

# Far above any model. Within them the bytes of a tensor are a number that torch can have.
Size = Annotated[int, Field(gt=0, le=2**20)]
Layers = Annotated[int, Field(gt=0, le=1000)]
VocabSize = Annotated[int, Field(le=10_000_000)]
Workers = Annotated[int, Field(le=1024)]
# `length ** this` is a number, and not 0, for every length.
LengthPenalty = Annotated[float, Field(ge=-20, le=20)]
# The limits of a number that has none of its own: an int is one of C, and a float times the factors
# of optimizers is still one of torch (float32).
LARGEST: dict[str, float] = {"int": 2**31 - 1, "float": 1e30}


def _limit(schema: Any) -> None:
    """Give each number in a core schema that has no upper limit its `LARGEST`."""
    if isinstance(schema, list):
        for each in schema:
            _limit(each)
    elif isinstance(schema, dict):
        if schema.get("type") in LARGEST and not {"le", "lt"} & schema.keys():
            schema["le"] = LARGEST[schema["type"]]
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
    EARLIER: ClassVar[Mapping[str, Any]] = {}

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

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting that only some parts have, or the default where this one has not."""
        return vars(self).get(name, default)

    def is_default(self, name: str) -> bool:
        """Return whether a setting has its default, given or not."""
        return getattr(self, name) == type(self).model_fields[name].default
