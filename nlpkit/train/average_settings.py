"""The section `train.average` of a recipe. Importable without torch."""

from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from nlpkit.config import FrozenConfig
from nlpkit.json_types import JsonObject


class AverageConfig(FrozenConfig):
    """The average of the weights that is judged and saved in place of the weights."""

    name: Literal["ema", "last"] = Field(
        description="ema: exponential moving average; last: mean of the last checkpoints"
    )
    decay: float = Field(
        0.999, gt=0, lt=1, description="ema: the old average's share in the new one"
    )
    checkpoints: int = Field(5, gt=0, description="last: the number of averaged checkpoints")
    every: int = Field(
        10, gt=0, description="last: steps between them; the last one is that of the last step"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, settings: Any) -> Any:
        return {"name": settings} if isinstance(settings, str) else settings

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        names = ("checkpoints", "every") if self.name == "ema" else ("decay",)
        return dict.fromkeys(names, f"with average {self.name}")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonObject:
        section = handler(core)
        return {"if": {"type": "string"}, "then": section["properties"]["name"], "else": section}
