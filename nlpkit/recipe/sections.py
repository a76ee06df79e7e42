"""The sections of a recipe, and the classes that declare their settings."""

from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    SerializationInfo,
    Strict,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import FrozenConfig, Layers, Part, name_in
from nlpkit.contracts.objective import Objective as ObjectiveClass
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models.sizes import parse_size

BACKENDS = "attention/backends"
TARGETS = ("size", "depth")  # of a model: what they leave open is decided by `recipe/autosize`
OLD_BACKENDS = {"recompute": "cpu_flash"}  # names in recipes of earlier versions


class Model(Part):
    """The model family and its sizes.

    With `init_from`, family and sizes are those of the checkpoint and `family` may be None;
    `config` then has the dropout rates that replace those of the checkpoint.
    """

    FOLDER = "models"
    KEY = "family"
    family: Annotated[str, name_in("models")] | None = Field(description="model family")
    size: str | int | None = Field(
        None,
        description="target number of parameters, such as 15M. Sets width, layers and heads, and "
        "steps, batch size and learning rate unless you set them",
    )
    depth: Layers | None = Field(
        None, description="target number of layers; use it instead of size"
    )
    config: Any = None

    @classmethod
    def own_in(cls, value: JsonMapping) -> list[str]:
        """Return the names of `own` but for a size or depth that is a setting of the family."""
        chosen = cls.config_of(value)
        theirs = chosen.model_fields if chosen else {}
        return [name for name in cls.own() if name == cls.KEY or name not in theirs]

    @classmethod
    def targets(cls, section: object) -> list[str]:
        """Return which of size and depth a section `model` of plain data has."""
        if not isinstance(section, dict):
            return []
        own = cls.own_in(section)  # a family may have settings of these names
        return [name for name in TARGETS if section.get(name) is not None and name in own]

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str | int | None) -> str | int | None:
        if size is not None:
            parse_size(size)
        return size

    @field_validator("config", mode="before")
    @classmethod
    def _check_dropout(cls, value: Any, info: ValidationInfo) -> Any:
        is_open = info.data.get("family", "not checked") is None
        if is_open and (other := [name for name in value if not str(name).endswith("dropout")]):
            raise ValueError(
                f"{', '.join(other)}: with init_from the family and sizes are the checkpoint's; "
                "only dropout rates can be set"
            )
        return value


class Objective(Part):
    """What is learned from the text."""

    FOLDER = "objectives"
    KEY = "name"
    name: Annotated[str, name_in("objectives"), Field(description="training objective")]
    weight: float = Field(1.0, gt=0, description="weight of its loss in a list or mixture")
    lengths: SkipJsonSchema[list[dict[str, int | float]] | None] = Field(
        None, description="the list that `max_length` was"
    )
    config: Any = None

    @property
    def objective(self) -> type[ObjectiveClass]:
        """The class of the objective."""
        objective: type[ObjectiveClass] = registry.load(self.FOLDER, self.name).Objective
        return objective

    @classmethod
    def own(cls) -> dict[str, FieldInfo]:
        """See `Part`; `lengths` is no key of a recipe."""
        return {name: field for name, field in super().own().items() if name != "lengths"}

    @model_validator(mode="before")
    @classmethod
    def _take_lengths(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("max_length"), list):
            from nlpkit.train.phases import take_lengths

            config = cls.config_of(given)
            return take_lengths(given, cls.own_in(given), config) if config else given
        return given

    @model_serializer(mode="plain")
    def _serialize(self, info: SerializationInfo) -> JsonObject:
        found = super()._serialize(info)
        return found if self.lengths is None else found | {"max_length": self.lengths}

    def with_max_length_of(self, first: "Objective") -> "Objective":
        """Return the section with the `max_length` of the first one, where it names none."""
        length = first.config.setting("max_length")
        names = {*type(self.config).model_fields} - self.config.model_fields_set
        if length is None or "max_length" not in names:
            return self
        config = self.config.model_copy(update={"max_length": length})
        return self.model_copy(update={"config": config})


class _Tokenizer(Part):
    """What every section of a tokenizer checks; the others declare `kind` after `path`."""

    FOLDER = "tokenizers"
    KEY = "kind"
    path: str | None = Field(None, min_length=1, description="directory of a trained tokenizer")

    @field_validator("kind", mode="before", check_fields=False)
    @classmethod
    def _check_kind(cls, kind: Any, info: ValidationInfo) -> Any:
        if "path" not in info.data:
            return kind
        # A side that is wrong is not in `data`; it is given, too.
        others = [name for name in ("path", "source", "target") if name in cls.model_fields]
        given = [name for name in others if info.data.get(name, "wrong") is not None]
        if kind is None and not given:
            raise PydanticCustomError("missing", "missing")
        if kind is not None and given:
            raise ValueError(f"kind and {given[0]} exclude each other: remove one of them")
        return kind

    @field_validator("config", mode="before", check_fields=False)
    @classmethod
    def _check_beside_path(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("kind", "not checked") is not None:
            return value
        # A null is not given: it takes back what a recipe says.
        if settings := ", ".join(name for name in value or () if value[name] is not None):
            how = "path, whose tokenizer is already trained"
            if info.data.get("path", "wrong") is None:
                how = "source and target; set it in each"
            raise ValueError(f"{settings}: cannot be set with {how}")
        return None


class Side(_Tokenizer):
    """The tokenizer of sources or of targets: trained on them (`kind`), or trained (`path`)."""

    kind: Annotated[str, name_in("tokenizers")] | None = Field(
        None, validate_default=True, description="tokenizer to train on this side of data.train"
    )
    config: Any = None


class Tokenizer(_Tokenizer):
    """A tokenizer trained on `data.train` (`kind`), or a trained one (`path`).

    With `init_from` it must begin with the tokens of the checkpoint; with `kind`, the tokenizer of
    the checkpoint grows on `data.train` to `vocab_size`. Sources and targets may have a tokenizer
    each (`source`, `target`), and so a vocabulary each.
    """

    source: Side | None = Field(None, description="tokenizer of the sources alone; see target")
    target: Side | None = Field(None, description="tokenizer of the targets alone; see source")
    kind: Annotated[str, name_in("tokenizers")] | None = Field(
        None, validate_default=True, description="tokenizer to train on data.train"
    )
    config: Any = None

    @model_validator(mode="after")
    def _check_sides(self) -> "Tokenizer":
        sides = {"source": self.source, "target": self.target}
        lacking = [name for name, side in sides.items() if side is None]
        if len(lacking) == 1:
            raise ValueError(f"{lacking[0]}: missing; sources and targets have a tokenizer each")
        if not lacking and self.path is not None:
            raise ValueError("path: excludes source and target: remove one of them")
        return self

    @property
    def sides(self) -> tuple[Side, Side] | None:
        """The tokenizers of sources and of targets; None: there is one for both."""
        return None if self.source is None or self.target is None else (self.source, self.target)


class AttentionLayer(Part):
    """The kind of attention of one layer, with its settings."""

    FOLDER = "attention/kinds"
    KEY = "kind"
    kind: Annotated[str, name_in("attention/kinds"), Field(description="who sees whom")]
    config: Any = None


class Attention(Part):
    """The kinds of attention (by default the family's own), and the backend."""

    FOLDER = "attention/kinds"
    KEY = "kind"
    backend: str = Field("auto", description="auto takes the fastest that fits; the log names it")
    layers: Annotated[tuple[AttentionLayer, ...], Strict(False)] | None = Field(
        None,
        min_length=1,
        description="a kind for each layer, repeated over the layers, instead of kind",
    )
    kind: Annotated[str, name_in("attention/kinds")] | None = Field(
        None, description="who sees whom, in every layer; default: the family's own"
    )
    config: Any = Field(None, validate_default=True)

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str) -> str:
        backend = OLD_BACKENDS.get(backend, backend)
        if "." in backend:
            try:
                registry.load(BACKENDS, backend)
            except UsageError as error:
                raise ValueError(str(error)) from error
            return backend
        names = ["auto", *registry.names(BACKENDS)]
        if backend not in names:
            near = registry.suggest(backend, names)
            raise ValueError(f"no {backend!r}{near}; known: {', '.join(names)}")
        return backend

    @field_validator("kind")
    @classmethod
    def _check_kind_or_layers(cls, kind: str | None, info: ValidationInfo) -> str | None:
        if kind is not None and info.data.get("layers"):
            raise ValueError("kind and layers exclude each other: remove one of them")
        return kind

    @field_validator("config", mode="before")
    @classmethod
    def _check_config(cls, value: Any, info: ValidationInfo) -> Any:
        if "kind" in info.data and info.data["kind"] is None:
            if value:
                name = str(next(iter(value)))
                near = registry.suggest(name, cls.own())
                raise ValueError(f"{name}: unknown setting where no kind is named{near}")
            return None
        return value

    @property
    def choices(self) -> tuple[AttentionChoice, ...]:
        """The kinds with their settings, as models take them; empty: the family's own."""
        chosen: tuple[Any, ...] = self.layers or ((self,) if self.kind else ())
        return tuple(AttentionChoice(kind=each.kind, config=each.config) for each in chosen)


def config_classes(annotation: object) -> list[type[FrozenConfig]]:
    """Return the classes of settings in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, FrozenConfig):
        return [annotation]
    return [config for inner in get_args(annotation) for config in config_classes(inner)]
