"""The `train:` section of a recipe. Importable without torch."""

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from nlpkit import registry
from nlpkit.config import FrozenConfig, Part, Workers, name_in
from nlpkit.contracts.optimizer import OptimizerPart
from nlpkit.contracts.schedule import SchedulePart
from nlpkit.json_types import JsonObject
from nlpkit.train.average_settings import AverageConfig
from nlpkit.train.trackers import Tracker
from nlpkit.units import parse_bytes, parse_duration, parse_number

# Settings that do not change the result; a run can be resumed with other values.
FREE: JsonObject = {"free": True}
_EXCLUDE = (  # pairs of settings of which one may be given
    ("epochs", "steps"),
    *(("budget", name) for name in ("steps", "epochs", "warmup_steps")),
    *(("words", name) for name in ("steps", "epochs", "budget")),
    ("warmup_ratio", "warmup_steps"),
    ("memory", "tokens_per_batch"),
    ("tokens_per_step", "rows_per_step"),
    ("memory", "rows_per_step"),
)
# Settings that not every optimizer, or schedule, uses.
_OF_OPTIMIZERS = ("beta1", "beta2", "adam_eps")
_OF_SCHEDULES = ("min_lr_ratio", "decay_ratio")
Words = Annotated[
    int,
    BeforeValidator(lambda text: parse_number(text, "words")),
    WithJsonSchema({"type": ["integer", "string"]}),
]
MAY_CHANGE = ("tokens_per_step", "weight_decay")  # in the course of a run: `train/phases.py`


class Optimizer(Part):
    """The optimizer with its own settings; rate, schedule and weight decay are those of `train`."""

    FOLDER = "train/optimizers"
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


class Config(FrozenConfig):
    """Length, learning rate, precision and checkpoints of training."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [length]} for length in ("steps", "epochs", "words", "budget")]
        }
    )
    ALTERNATIVES: ClassVar = (
        ("steps", "epochs", "words", "budget"),
        ("warmup_steps", "warmup_ratio"),
        ("tokens_per_step", "rows_per_step"),
    )

    # These three are defined before `steps`, because the check of `steps` reads them.
    budget: str | None = Field(
        None,
        description="time of the training loop, evaluations and checkpoints included, such as 30m "
        "or 8h; instead of steps",
    )
    budget_clock: Literal["wall", "training", "cpu"] = Field(
        "wall", description="of budget; training: without evaluations; cpu: the same in CPU time"
    )
    epochs: float | None = Field(
        None, gt=0, description="number of passes over the training examples; instead of steps"
    )
    words: Words | None = Field(
        None, description="words of text to read, such as 100M; instead of steps"
    )
    steps: int | None = Field(
        None,
        gt=0,
        validate_default=True,
        description="optimizer steps in all; or give epochs, words, or a budget of time",
    )
    tokens_per_step: int | None = Field(
        16384, gt=0, le=2**24, description="tokens of an optimizer step, or a list"
    )
    rows_per_step: int | None = Field(
        None,
        gt=0,
        description="rows (examples) of an optimizer step, whatever their length; instead of "
        "tokens_per_step",
    )
    tokens_per_batch: int | None = Field(
        None,
        gt=0,
        description="tokens of one forward and backward pass (gradients are accumulated up to a "
        "step); default: tokens_per_step, at most 4096; with rows_per_step 4096",
    )
    optimizer: Optimizer = Field(
        default_factory=lambda: Optimizer.model_validate("adamw"),
        description="optimizer: its name, or name and settings",
    )
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    schedule: Schedule = Field(
        "noam",
        validate_default=True,
        description="shape of the learning rate after the warm-up: its name, or name and settings",
    )
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up from 0 to lr")
    warmup_ratio: float | None = Field(
        None, ge=0, lt=1, description="warm-up as a share of all steps; instead of warmup_steps"
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, lt=1, description="final rate of linear, cosine and wsd, as a share of lr"
    )
    decay_ratio: float = Field(
        0.2, ge=0, le=1, description="decay of wsd at the end of the run, as a share of all steps"
    )
    weight_decay: float = Field(
        0.01, ge=0, description="on matrices and tables; decoupled, but for sgd; or a list"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second moment")
    adam_eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    clip: float | None = Field(1.0, gt=0, description="largest gradient norm; null: no clipping")
    z_loss: float = Field(
        0.0,
        ge=0,
        description="weight of the squared log of the softmax's normalizer in the loss of each "
        "token; PaLM: 1e-4",
    )
    average: AverageConfig | None = Field(
        None, description="average of the weights that is judged and saved as the model: ema, last"
    )
    memory: str | None = Field(
        None,
        description="memory of a process, such as 20GB: chooses tokens_per_batch, and switches "
        "gradient_checkpointing on if it is needed; a run keeps what was chosen at its start",
        json_schema_extra=FREE,
    )
    gradient_checkpointing: bool = Field(
        False,
        description="keep only the inputs of layers and compute the rest again in backward: less "
        "memory, a third more computation, the same numbers",
        json_schema_extra=FREE,
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="precision of computation; auto: the faster one on this machine"
    )
    eval_every: int | None = Field(None, gt=0, description="steps between evaluations")
    save_every: int = Field(
        200, gt=0, description="steps between checkpoints", json_schema_extra=FREE
    )
    save_at: list[Words] = Field(
        [],
        description="words of text, such as [1M, 2M], after which RUN/chck_1M, … are written",
        json_schema_extra=FREE,
    )
    keep: int = Field(2, gt=0, description="newest checkpoints kept", json_schema_extra=FREE)
    best_by: str = Field(
        "loss",
        min_length=1,
        description="held-out figure that selects the best checkpoint: loss, a score as "
        "eval.metrics names it, such as f1:average=macro, or a score of the objective",
    )
    patience: int | None = Field(
        None, gt=0, description="stop after this number of evaluations without improvement"
    )
    tune: Literal["all", "prompt"] = Field(
        "all", description="what is trained: all weights, or only the soft prompt, without decay"
    )
    workers: Workers = Field(
        0, ge=0, description="processes that prepare batches", json_schema_extra=FREE
    )
    log_every: int = Field(
        1, gt=0, description="steps between lines in metrics.jsonl", json_schema_extra=FREE
    )
    trackers: list[Tracker] = Field(
        [],
        description="installed trackers that also get the lines of metrics.jsonl, such as wandb",
        json_schema_extra=FREE,
    )
    deterministic: bool = Field(
        True, description="use deterministic algorithms only: same bits in every run"
    )

    phases: SkipJsonSchema[dict[str, list[dict[str, int | float]]]] = Field(
        {}, exclude=True, description="the lists of settings that change"
    )

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, given: Any) -> Any:
        """Keep lists apart as `phases`; let rows replace tokens; drop the null of older runs."""
        if isinstance(given, dict) and given.get("replay", "") is None:
            given = {name: value for name, value in given.items() if name != "replay"}
        if isinstance(given, dict) and (
            "phases" in given or any(isinstance(given.get(n), list) for n in MAY_CHANGE)
        ):
            from nlpkit.train.phases import take_lists

            given = take_lists(given, cls.model_fields)
        if isinstance(given, dict) and given.get("rows_per_step") is not None:
            return {"tokens_per_step": None} | given
        return given

    @model_serializer(mode="wrap")
    def _with_lists(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        return {**handler(self), **self.phases}

    @field_validator("steps", mode="before")
    @classmethod
    def _steps_or_epochs(cls, steps: Any, info: ValidationInfo) -> Any:
        others = [info.data.get(name, "not checked") for name in ("epochs", "words", "budget")]
        if steps is None and others == [None] * 3:
            raise PydanticCustomError("missing", "missing")
        return steps

    @field_validator("budget", "memory", mode="before")
    @classmethod
    def _readable(cls, given: Any, info: ValidationInfo) -> Any:
        is_time = info.field_name == "budget"
        if type(given) in (int, float):
            given = f"{given}s" if is_time else str(given)
        if isinstance(given, str):
            (parse_duration if is_time else parse_bytes)(given)
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        for one, other in _EXCLUDE:
            if (first := getattr(self, one)) and (second := getattr(self, other)):
                raise ValueError(
                    f"{one}: {_show(first)} and train.{other}: {_show(second)} exclude each other; "
                    "remove one of them"
                )
        if self.tokens_per_batch and (self.tokens_per_step or 0) % self.tokens_per_batch:
            raise ValueError(
                f"tokens_per_step: {self.tokens_per_step} is not a multiple of "
                f"tokens_per_batch {self.tokens_per_batch}"
            )
        if self.schedule.module.NEEDS_WARMUP and not (self.warmup_steps or self.warmup_ratio):
            raise ValueError(
                f"schedule: {self.schedule.name} needs warmup_steps of at least 1 or warmup_ratio; "
                "constant, linear, cosine and wsd do not"
            )
        if self.budget or self.phases or self.patience or self.save_at or not self.tokens_per_step:
            from nlpkit.train import settings_checks

            settings_checks.check(self)
        return self

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        read = {*self.optimizer.module.READS, *self.schedule.module.READS}
        why = dict.fromkeys(_OF_OPTIMIZERS, f"with optimizer {self.optimizer.name}")
        why |= dict.fromkeys(_OF_SCHEDULES, f"with schedule {self.schedule.name}")
        why |= {"weight_decay": "with train.tune: prompt"} if self.tune == "prompt" else {}
        why |= {} if self.budget else {"budget_clock": "without train.budget"}
        return {name: reason for name, reason in why.items() if name not in read}

    @property
    def batch_budget(self) -> int:
        """Return the token budget of one forward and backward pass."""
        if self.tokens_per_batch:
            return self.tokens_per_batch
        return next(size for size in range(4096, 0, -1) if (self.tokens_per_step or 0) % size == 0)

    @property
    def batches_per_step(self) -> int:
        """Return the packed batches of `tokens_per_step`, over all processes; 0 of rows."""
        return (self.tokens_per_step or 0) // self.batch_budget


def _show(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"
