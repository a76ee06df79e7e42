"""What attention's parts offer: kinds (who sees whom), backends (how), and what passes between.

A kind is a file of `kinds/`, a backend a file of `backends/`. A kind has a `mask`, which any
backend computes, or an `attend` of its own, where it is no softmax over a mask (linear attention).

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

# What a state may depend on: nothing to its right; nothing to its right but a context that sees
# itself (a prefix, in any place); anything in its sequence.
Visibility = Literal["causal", "prefix", "bidirectional"]
LAYOUT_FIELDS = ("position", "length")  # of any pack: place in the sequence, tokens of the sequence


class Kind(Protocol):
    """What every kind says of itself."""

    Config: type[FrozenConfig]
    VISIBILITY: Visibility
    # `causal` or `full` where the mask is exactly that, which fused kernels have built in.
    KERNEL: Literal["causal", "full"] | None
    # Fields of the batch that it reads, (N,) each; `OPTIONAL` ones may be absent. `position` and
    # `length` are those of the layout where the batch has none.
    FIELDS: tuple[str, ...]
    OPTIONAL: tuple[str, ...]

    def tensors(self, config: Any, heads: int, head_dim: int) -> Mapping[str, Learned]:
        """Return the learned tensors that a family must hold for this kind."""

    def pairs(self, config: Any, lengths: Sequence[int]) -> float:
        """Return how many pairs of query and key are computed in sequences of these lengths."""


class MaskKind(Kind, Protocol):
    """A kind that is softmax over a mask, with or without a learned bias."""

    SORT_FIRST: str | None  # a bool field whose tokens are best computed first, or None

    def mask(self, config: Any, q: Tokens, k: Tokens) -> Tensor:
        """Return True where the query may see the key; `q` and `k` broadcast."""


class BiasKind(MaskKind, Protocol):
    """A kind whose scores get a learned bias: rows of its tensor `table` (rows, H)."""

    def buffers(self, config: Any) -> Mapping[str, Tensor]:
        """Return constants that `bias_index` reads."""

    def bias_index(
        self, config: Any, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens
    ) -> Tensor:
        """Return the row of the table for each pair of query and key."""


@runtime_checkable
class ComputedKind(Protocol):
    """A kind that computes itself."""

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

        `tensors` are the layer's own learned ones. `state`, in generation, is what is kept of each
        sequence, tensors (B, …): empty at the first call, which fills it; later calls go on from
        it, with the same number of new tokens for each sequence.
        """


@dataclass(frozen=True)
class Learned:
    """A learned tensor of a kind: its shape, how it is drawn, who has one."""

    shape: tuple[int, ...]
    std: float = 0.02
    shared: bool = False  # one for all layers, handed to `prepare`; else one a layer, to `attend`


class Choice(FrozenConfig):
    """A kind with its settings, as a recipe or a checkpoint names it."""

    kind: str
    config: Any

    @classmethod
    def of(cls, kind: str, **settings: Any) -> Choice:
        """Return the choice of a kind with these settings, the others at their defaults."""
        return cls(kind=kind, config=load_kind(kind).Config(**settings))

    @property
    def module(self) -> Kind:
        """The kind itself."""
        return load_kind(self.kind)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as `from_json` takes them."""
        return {"kind": self.kind, **self.config.model_dump(mode="json")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Choice:
        """Return the choice that `to_json` wrote; raise `UsageError` or `ValueError`."""
        settings = dict(values)
        name = settings.pop("kind", None)
        if not isinstance(name, str):
            raise UsageError(f"attention: kind is {name!r}, not a name")
        return cls.of(name, **settings)


def load_kind(name: str) -> Kind:
    """Return the kind called `name`; raise `UsageError` with the nearest known name."""
    return cast(Kind, registry.load("attention/kinds", name))


class Tokens:
    """Some tokens of a pack: `tokens["position"]` is that field of each of them."""

    def __init__(self, fields: Mapping[str, Tensor], index: Tensor):
        self.fields, self.index = fields, index

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name][self.index]

    def __contains__(self, name: str) -> bool:
        return name in self.fields


@dataclass(frozen=True)
class Request:
    """What a backend is asked for: the kind with its fields, and the tensors to come.

    `keys` is the layout of keys and values; sequence i of the queries sees sequence i of the keys.
    """

    kind: Any  # a `Kind`: which of its protocols, the backends know
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

    @property
    def table(self) -> Tensor | None:
        """The learned bias, (rows, H), if the kind has one."""
        return self.tensors.get("table")

    @property
    def is_cross(self) -> bool:
        """Whether keys and values are of other sequences than the queries."""
        return self.keys is not self.layout

    @property
    def kernel(self) -> str | None:
        """`causal` or `full` where a fused kernel needs no mask and no bias, else None."""
        if self.table is not None or (self.is_cross and self.kind.KERNEL == "causal"):
            return None
        return self.kind.KERNEL

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the kind's mask for indices of queries and keys, whatever their sequences."""
        return self.kind.mask(self.config, Tokens(self.fields, q), Tokens(self.key_fields, k))

    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """Return who sees whom among the indices `q`, `k`, other sequences ruled out."""
        return self.mask(q, k) & (self.layout.document_ids[q] == self.keys.document_ids[k])

    def bias_index(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the row of the table for each pair of indices."""
        queries, keys = Tokens(self.fields, q), Tokens(self.key_fields, k)
        return self.kind.bias_index(self.config, self.buffers, queries, keys)


class Backend(Protocol):
    """What every backend offers."""

    def refuses(self, request: Request) -> str | None:
        """Return why this request cannot be done, or None."""

    def prepare(self, request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return `attend(q, k, v)`: (N, H, D), (K, H, D), (K, H, D) -> (N, H, D)."""
