"""The interfaces of attention kinds and backends, and the request that connects them.

A kind is a file in `kinds/`, a backend is a file in `backends/`. A kind has a `mask`, which any
backend can use, or its own `attend` if it is not a softmax over a mask (linear attention).

N packed tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError

if TYPE_CHECKING:  # kinds and recipes are free of torch
    import torch
    from torch import Tensor

    from nlpkit.attention.layout import Layout

# The tokens that a state may depend on. causal: its own token and those to its left; prefix: also
# all tokens of a context, anywhere in the sequence; bidirectional: all tokens of its sequence.
Visibility = Literal["causal", "prefix", "bidirectional"]
LAYOUT_FIELDS = ("position", "length")  # every layout has them: position and sequence length


class Kind(Protocol):
    """The interface of every kind."""

    Config: type[FrozenConfig]
    VISIBILITY: Visibility
    # `causal` or `full` if the mask is exactly one that fused kernels have built in.
    KERNEL: Literal["causal", "full"] | None
    # Fields of the batch that the kind reads, each (N,); those in `OPTIONAL` may be absent. The
    # layout provides `position` and `length` if the batch does not.
    FIELDS: tuple[str, ...]
    OPTIONAL: tuple[str, ...]
    COST: str  # how it grows with N, the tokens of a sequence, for the table in docs/attention.md

    def tensors(self, config: Any, heads: int, head_dim: int) -> Mapping[str, Learned]:
        """Return the learned tensors that a family must hold for this kind."""

    def pairs(self, config: Any, lengths: Sequence[int]) -> float:
        """Return the number of visible query-key pairs in sequences of these lengths."""


class MaskKind(Kind, Protocol):
    """A kind that is a softmax over a mask, with or without a learned bias."""

    SORT_FIRST: str | None  # bool field: a backend may sort tokens that have it to the front

    def mask(self, config: Any, q: Tokens, k: Tokens) -> Tensor:
        """Return True where the query may see the key; `q` and `k` broadcast."""


class BiasKind(MaskKind, Protocol):
    """A mask kind that adds a learned bias to the scores: rows of its tensor `table` (rows, H)."""

    def buffers(self, config: Any) -> Mapping[str, Tensor]:
        """Return constants that `bias_index` reads."""

    def bias_index(
        self, config: Any, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens
    ) -> Tensor:
        """Return the row of the table for each pair of query and key."""


@runtime_checkable
class WindowKind(Protocol):
    """A mask kind whose mask is, with all or some settings, exactly a window around each query."""

    def keys_in_sight(self, config: Any) -> tuple[int, int] | None:
        """Return how many keys to the left and to the right of itself a query sees.

        None with settings of which the mask is no window.
        """


@runtime_checkable
class EitherKind(Protocol):
    """A kind whose settings decide what a token sees; `VISIBILITY` is that of the defaults."""

    def visibility(self, config: Any) -> Visibility:
        """Return which tokens a state may depend on with these settings."""


@runtime_checkable
class ComputedKind(Protocol):
    """A kind with its own computation.

    Optional members: `mask`, as a `MaskKind` has, which is then drawn; `DROPOUT = True`: it applies
    the dropout of the request, which other kinds refuse; `CROSS = False`: it is for attention of a
    sequence to itself alone; `prepared(request)`: what the layers of a step share,
    `request.prepared` in `attend`; `reference(config, q, k, v, tensors)`: the formula for one
    sequence, (n, H, D), to be read and for tests.
    """

    def attend(
        self,
        request: Request,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tensors: Mapping[str, Tensor],
        state: dict[str, Tensor] | None,
    ) -> Tensor:
        """Return (N, H, D) for a pack.

        `tensors` are the learned tensors of this layer. `state` is the state of the B sequences in
        generation, tensors (B, …). The first call fills it; later calls read and update it, with
        the same number of new tokens for each sequence. Where a state grows, its second
        dimension is tokens; `Cache.append` fills the shorter one with zeros.
        """


@runtime_checkable
class SharedKind(Protocol):
    """A kind that, with some settings, is other kinds for shares of the heads."""

    def shares(self, config: Any) -> tuple[Choice, ...]:
        """Return the kinds of equal shares of the heads, first heads first; empty: one for all."""


@dataclass(frozen=True)
class Learned:
    """A learned tensor of a kind; its initial values are drawn from N(0, std)."""

    shape: tuple[int, ...]
    std: float = 0.02
    shared: bool = False  # one for all layers, given to `prepare`; or one per layer, to `attend`


class Choice(FrozenConfig):
    """A kind with its settings, as a recipe or a checkpoint names it."""

    kind: str
    config: Any

    @classmethod
    def of(cls, kind: str, **settings: Any) -> Choice:
        """Return the choice of a kind with these settings; the other settings have defaults."""
        return cls(kind=kind, config=load_kind(kind).Config(**settings))

    @property
    def module(self) -> Kind:
        """The kind itself."""
        return load_kind(self.kind)

    @property
    def visibility(self) -> Visibility:
        """The tokens that a state may depend on."""
        return visibility(self.module, self.config)

    def suited(self, default: Visibility, longest: int | None) -> Choice:
        """Return the choice with its null settings `causal` and `max_length` from the model.

        `default` is the visibility of the family's own attention, `longest` its longest sequence.
        """
        own = {"causal": default != "bidirectional", "max_length": longest}
        changed = {k: v for k, v in own.items() if getattr(self.config, k, v) is None}
        if not changed:
            return self
        return self.model_copy(update={"config": self.config.model_copy(update=changed)})

    @property
    def shares(self) -> tuple[Choice, ...]:
        """The kinds of equal shares of the heads; empty if the kind is the same for all heads."""
        kind = self.module
        return kind.shares(self.config) if isinstance(kind, SharedKind) else ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {"kind": self.kind, **self.config.model_dump(mode="json")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Choice:
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


def visibility(kind: object, config: object) -> Visibility:
    """Return the tokens that a state may depend on in this kind with these settings."""
    if isinstance(kind, EitherKind):
        return kind.visibility(config)
    return cast(Kind, kind).VISIBILITY


def is_bounded(choice: Choice) -> bool:
    """Return whether sequences may have no more than `max_length` tokens in this kind."""
    return bool(getattr(choice.config, "bounded", False))


class Tokens:
    """A selection of tokens of a pack: `tokens["position"]` is their field `position`."""

    def __init__(self, fields: Mapping[str, Tensor], index: Tensor):
        self.fields, self.index = fields, index

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name][self.index]

    def __contains__(self, name: str) -> bool:
        return name in self.fields


@dataclass(frozen=True)
class Request:
    """All inputs of a backend but q, k and v.

    `keys` is the layout of keys and values; sequence i of the queries sees sequence i of the keys.
    """

    kind: Any  # a `MaskKind`, `BiasKind` or `ComputedKind`
    config: Any
    layout: Layout
    keys: Layout
    fields: Mapping[str, Tensor]
    key_fields: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    training: bool
    dropout: float
    scale: float
    prepared: Any = None  # what a `ComputedKind` has prepared for the step

    @property
    def table(self) -> Tensor | None:
        """The learned bias, (rows, H), or None."""
        return self.tensors.get("table")

    @property
    def is_cross(self) -> bool:
        """Whether keys and values come from other sequences than the queries (cross attention)."""
        return self.keys is not self.layout

    @property
    def kernel(self) -> str | None:
        """`causal` or `full` if a fused kernel needs no mask and no bias, else None."""
        if self.table is not None or (self.is_cross and self.kind.KERNEL == "causal"):
            return None
        return self.kind.KERNEL

    @property
    def window(self) -> tuple[int, int] | None:
        """Keys to the left and to the right that a query sees, -1 for all of them.

        None if a fused kernel with a sliding window cannot compute the mask, or if there is a bias.
        """
        if self.kernel is not None:
            return (-1, 0) if self.kernel == "causal" else (-1, -1)
        if self.table is not None or self.is_cross or not isinstance(self.kind, WindowKind):
            return None
        return self.kind.keys_in_sight(self.config)

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the kind's mask for these indices, without the boundaries of sequences."""
        return self.kind.mask(self.config, Tokens(self.fields, q), Tokens(self.key_fields, k))

    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the kind's mask for these indices; False across sequences."""
        return self.mask(q, k) & (self.layout.document_ids[q] == self.keys.document_ids[k])

    def bias_index(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the row of the bias table for each pair of indices."""
        queries, keys = Tokens(self.fields, q), Tokens(self.key_fields, k)
        return self.kind.bias_index(self.config, self.buffers, queries, keys)


class Backend(Protocol):
    """The interface of every backend."""

    def refuses(self, request: Request) -> str | None:
        """Return why the backend does not support this request, or None."""

    def prepare(self, request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return `attend(q, k, v)`: (N, H, D), (K, H, D), (K, H, D) -> (N, H, D)."""
