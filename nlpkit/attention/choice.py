"""A kind of attention with its settings, and the request that a step makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import LAYOUT_FIELDS, Kind, ParamSpec, Visibility
from nlpkit.contracts.request import Heads, Layout, Request
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:  # recipes are free of torch
    from torch import Tensor


class AttentionChoice(FrozenConfig):
    """A kind with its settings, as a recipe or a checkpoint names it."""

    kind: str
    config: Any

    @classmethod
    def of(cls, kind: str, **settings: Any) -> AttentionChoice:
        """Return the choice of a kind with these settings; the other settings have defaults."""
        return cls(kind=kind, config=load_kind(kind).Config(**settings))

    @property
    def module(self) -> Kind:
        """The kind itself."""
        return load_kind(self.kind)

    @property
    def is_custom(self) -> bool:
        """Whether the kind has its own computation, so that no backend computes it."""
        return self.module.attend is not None

    @property
    def is_bounded(self) -> bool:
        """Whether sequences may have no more than `max_length` tokens."""
        return self.module.is_bounded(self.config)

    @property
    def visibility(self) -> Visibility:
        """The tokens that a state may depend on."""
        return self.module.visibility(self.config)

    @property
    def head_groups(self) -> tuple[AttentionChoice, ...]:
        """The choices for equal groups of heads; empty if there is one for all heads."""
        groups = self.module.head_groups(self.config)
        return tuple(AttentionChoice(kind=self.kind, config=group) for group in groups)

    def refuses_heads(self, heads: int, key_heads: int | None = None) -> str | None:
        """Return why the heads do not fall into the groups of the kind, or None."""
        groups, keys = len(self.head_groups), key_heads or heads
        if not groups or not (heads % groups or (keys % groups and groups % keys)):
            return None
        of_keys = "" if key_heads is None else f", that of keys {key_heads}"
        return f"it shares the heads among {groups} kinds; the number of heads is {heads}{of_keys}"

    def tensors(self, heads: int, head_dim: int) -> Mapping[str, ParamSpec]:
        """Return the learned tensors that a family must hold."""
        return self.module.tensors(self.config, heads, head_dim)

    def with_defaults(self, default: Visibility, longest: int | None) -> AttentionChoice:
        """Return the choice with its null settings `causal` and `max_length` from the model.

        `default` is the visibility of the family's own attention, `longest` its longest sequence.
        """
        own = {"causal": default != "bidirectional", "max_length": longest}
        changed = {name: own[name] for name, value in self.config if value is None and name in own}
        if not changed:
            return self
        return self.model_copy(update={"config": self.config.model_copy(update=changed)})

    def to_json(self) -> JsonObject:
        """Return plain values that `from_json` reads."""
        return {"kind": self.kind, **self.config.model_dump(mode="json")}

    @classmethod
    def from_json(cls, values: JsonMapping) -> AttentionChoice:
        """Return the choice that `to_json` wrote.

        Raises:
            UsageError: the kind is missing or unknown.
            ValueError: a setting is wrong.
        """
        settings = dict(values)
        name = settings.pop("kind", None)
        if not isinstance(name, str):
            raise UsageError(f"attention: kind is {name!r}, not a name")
        return cls.of(name, **settings)


def load_kind(name: str) -> Kind:
    """Return the kind called `name`; raise `UsageError` with the nearest known name."""
    return cast(Kind, registry.load("attention/kinds", name))


def make_request(
    choice: AttentionChoice,
    heads: Heads,
    layout: Layout,
    keys: Layout | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Request:
    """Return what a backend gets; `tensors` None: for the mask of the kind alone.

    Raises:
        ValueError: fields are missing, or tensors are missing or have a wrong shape.
    """
    if heads.count % (heads.key_heads or heads.count):
        raise ValueError(f"{heads.key_heads} heads of keys for {heads.count} of queries")
    kind = choice.module
    buffers: Mapping[str, Tensor] = {}
    if tensors is not None:
        learned = choice.tensors(heads.count, heads.width)
        expected = {name: tensor.shape for name, tensor in learned.items() if tensor.shared}
        if expected != (shapes := {name: tuple(tensor.shape) for name, tensor in tensors.items()}):
            raise ValueError(
                f"attention kind {choice.kind!r} needs the tensors {expected}; given: {shapes}"
            )
        buffers = kind.buffers(choice.config)
    fields = dict(_read_fields(choice, layout))
    return Request(
        kind=kind,
        config=choice.config,
        layout=layout,
        keys=keys or layout,
        fields=fields,
        key_fields=dict(_read_fields(choice, keys)) if keys else fields,
        tensors=tensors or {},
        buffers={name: value.to(layout.device) for name, value in buffers.items()},
        heads=heads.count,
        key_heads=heads.key_heads or heads.count,
        head_dim=heads.width,
        dtype=heads.dtype,
        training=heads.training,
        dropout=heads.dropout if heads.training else 0.0,
        scale=heads.width**-0.5 if heads.scale is None else heads.scale,
    )


def _read_fields(choice: AttentionChoice, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield the fields that the kind reads; the layout provides missing positions and lengths."""
    for field in choice.module.FIELDS:
        value = layout.fields.get(field)
        if value is None and field in LAYOUT_FIELDS:
            value = layout.positions if field == "position" else layout.token_lengths
        if value is not None:
            yield field, value
        elif field not in choice.module.OPTIONAL:
            given = ", ".join(sorted(layout.fields)) or "nothing"
            raise ValueError(
                f"attention kind {choice.kind!r} needs the field {field!r}; given: {given}"
            )
