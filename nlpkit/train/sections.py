"""The sections of `train` that name a part or an average. Importable without torch."""

from typing import Annotated, Any, Literal, cast

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from nlpkit import registry
from nlpkit.config import FrozenConfig, Part, name_in
from nlpkit.contracts.optimizer import OptimizerPart
from nlpkit.contracts.schedule import SchedulePart


class Optimizer(Part):
    """The optimizer with its own settings; rate, schedule and weight decay are those of `train`."""

    FOLDER = "train/optimizers"
    KEY = "name"
    SHORT = True
    name: Annotated[str, name_in(FOLDER), Field(description="optimizer")]
    config: Any = None

    @property
    def module(self) -> OptimizerPart:
        """The module of this name."""
        return cast(OptimizerPart, registry.load(self.FOLDER, self.name))


class Schedule(Part):
    """The schedule with its own settings; peak, warm-up and end are those of `train`."""

    FOLDER = "train/schedules"
    KEY = "name"
    SHORT = True
    name: Annotated[str, name_in(FOLDER), Field(description="schedule")]
    config: Any = None

    @property
    def module(self) -> SchedulePart:
        """The module of this name."""
        return cast(SchedulePart, registry.load(self.FOLDER, self.name))

    @model_serializer(mode="plain")
    def _short(self, info: SerializationInfo) -> Any:
        settings = self._serialize(info)
        return settings if len(settings) > 1 else self.name


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
    ) -> JsonSchemaValue:
        section = handler(core)
        return {"if": {"type": "string"}, "then": section["properties"]["name"], "else": section}
