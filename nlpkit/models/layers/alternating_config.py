"""Settings of a model whose layers see all tokens, or a window of them. Imports no torch."""

from collections.abc import Sequence
from typing import ClassVar

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models.config import ModelConfig

LOCAL = "local_window"  # the kind of the layers that see a window


class AlternatingConfig(ModelConfig):
    """Layers of both types in turn; a type is True if a layer sees all tokens.

    A window is the number of tokens that are seen to a side, the token itself included.
    """

    is_causal: ClassVar[bool] = True
    default_types: ClassVar[tuple[bool, ...]]  # repeated over the layers
    default_window: ClassVar[int]

    @classmethod
    def layer_kinds(cls, types: Sequence[bool], window: int) -> tuple[AttentionChoice, ...]:
        """Return the kinds of attention of layers of these types."""
        whole = AttentionChoice.of("causal" if cls.is_causal else "full")
        local = AttentionChoice.of(LOCAL, causal=cls.is_causal, window=window)
        return tuple(whole if sees_all else local for sees_all in types)

    @classmethod
    def read_kinds(cls, types: Sequence[bool], window: int) -> tuple[AttentionChoice, ...]:
        """Return the setting `attention` of a model with these layers; (): the family's own."""
        own = cls.layer_kinds(repeat(cls.default_types, len(types)), cls.default_window)
        kinds = cls.layer_kinds(types, window)
        return () if kinds == own else kinds[: len(shorten(types))]

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """The layers of both types in turn."""
        return self.layer_kinds(self.default_types, self.default_window)

    @property
    def has_default_attention(self) -> bool:
        """Whether all layers see all tokens or one window."""
        return {*self.kinds} <= {*self.layer_kinds((True, False), self.window)}

    @property
    def window(self) -> int:
        """The window of the layers that have one."""
        windows = (kind.config.window for kind in self.kinds if kind.kind == LOCAL)
        return next(windows, self.default_window)

    @property
    def layer_types(self) -> list[bool]:
        """The type of each layer."""
        return repeat([kind.kind != LOCAL for kind in self.kinds], self.num_layers)


def repeat(types: Sequence[bool], layers: int) -> list[bool]:
    """Return the type of each layer."""
    return [types[number % len(types)] for number in range(layers)]


def shorten(types: Sequence[bool]) -> Sequence[bool]:
    """Return the shortest beginning that is repeated over the layers, the last time in part."""
    sizes = range(1, len(types) + 1)
    return next(types[:n] for n in sizes if repeat(types[:n], len(types)) == [*types])


def read_types(setting: str, given: Sequence[str], names: Sequence[str], layers: int) -> list[bool]:
    """Return the type of each layer, from a setting of transformers with `names` of both types.

    Raises:
        ValueError: there is another name, or another number of layers.
    """
    if unknown := {*map(str, given)} - {*names}:
        raise ValueError(f"{setting} has {min(unknown)!r}; this family has {[*names]}")
    if len(given) != layers:
        raise ValueError(f"{setting} has {len(given)} entries for {layers} layers")
    return [each == names[0] for each in given]
