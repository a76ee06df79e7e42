"""The contract of `attention/kinds/NAME.py`: who sees whom.

A kind has a `mask`, which any backend can use, or its own `attend` if it is not a softmax over a
mask (linear attention).

N packed tokens, K keys, H heads, D width of a head, B sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request

# The tokens that a state may depend on. causal: its own token and those to its left; prefix: also
# all tokens of a context, anywhere in the sequence; bidirectional: all tokens of its sequence.
Visibility = Literal["causal", "prefix", "bidirectional"]
Kernel = Literal["causal", "full"]  # the masks that fused kernels have built in
Learned: TypeAlias = "Mapping[str, Tensor]"  # the tensors that a kind learns, by their names
State: TypeAlias = "dict[str, Tensor]"  # of generation, tensors (B, …)
LAYOUT_FIELDS = ("position", "length")  # every layout has them: position and sequence length
_OF_KERNEL: Mapping[Kernel, Visibility] = {"causal": "causal", "full": "bidirectional"}


class Tokens:
    """A selection of tokens of a pack: `tokens["position"]` is their field `position`."""

    def __init__(self, fields: Mapping[str, Tensor], index: Tensor):
        self.fields, self.index = fields, index

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name][self.index]

    def __contains__(self, name: str) -> bool:
        return name in self.fields


@dataclass(frozen=True)
class ParamSpec:
    """A learned tensor of a kind; its initial values are drawn from N(0, std)."""

    shape: tuple[int, ...]
    std: float = 0.02
    shared: bool = False  # one for all layers, given to `prepare`; or one per layer, to `attend`


class Range(NamedTuple):
    """A part of a mask: each query sees the keys of its own class from `first` to `last`.

    These are positions. A query whose `last` is lower than its `first` sees nothing. No query sees
    a key of class -1. Without classes all tokens are of one class.
    """

    first: Tensor  # (N,)
    last: Tensor  # (N,)
    query_class: Tensor | None = None  # (N,)
    key_class: Tensor | None = None  # (K,)


class Kind(Protocol):
    """The members of every kind; one of `mask` and `attend` is needed, too."""

    Config: type[FrozenConfig]
    VISIBILITY: Visibility
    # The mask that fused kernels have built in, if it is exactly this kind's: of all settings, or
    # where all fields in `OPTIONAL` are absent. The kind then counts as that one.
    KERNEL: Kernel | None = None
    KERNEL_WITHOUT_FIELDS: Kernel | None = None
    # Fields of the batch that the kind reads, each (N,); those in `OPTIONAL` may be absent. The
    # layout provides `position` and `length` if the batch does not.
    FIELDS: tuple[str, ...] = ()
    OPTIONAL: tuple[str, ...] = ()
    COST: str = ""  # how it grows with N, the tokens of a sequence, for the table in the docs
    SORT_FIRST: str | None = None  # bool field: a backend may sort tokens that have it to the front
    # Of a kind with `attend`: whether it applies the dropout of the request; whether it is for
    # keys of other sequences, too.
    DROPOUT: bool = False
    CROSS: bool = True

    mask: Callable[[Any, Tokens, Tokens], Tensor] | None = None
    attend: Callable[..., Tensor] | None = None
    # `pairs(config, lengths)`: how many pairs of query and key it computes in sequences of these
    # lengths, where the mask of their positions does not say it.
    pairs: Callable[[Any, Sequence[int]], float] | None = None
    # `ranges(config, q, k)`: parts of the mask that have no pair in common and together are the
    # mask, for all queries (N,) and all keys (K,) of a pack. They are meant within each sequence.
    ranges: Callable[[Any, Tokens, Tokens], Sequence[Range]] | None = None

    def visibility(self, config: Any) -> Visibility:
        """Return which tokens a state may depend on with these settings."""
        kernel = self.KERNEL_WITHOUT_FIELDS
        return self.VISIBILITY if kernel is None else _OF_KERNEL[kernel]

    def required_fields(self, config: Any) -> frozenset[str]:
        """Return the fields that the family must provide with these settings."""
        return frozenset({*self.FIELDS} - {*self.OPTIONAL})

    def tensors(self, config: Any, heads: int, head_dim: int) -> Mapping[str, ParamSpec]:
        """Return the learned tensors that a family must hold for this kind.

        A learned bias of the scores is the tensor `table` (rows, H).
        """
        return {}

    def buffers(self, config: Any) -> Mapping[str, Tensor]:
        """Return constants that `bias_index` reads."""
        return {}

    def bias_index(
        self, config: Any, buffers: Mapping[str, Tensor], q: Tokens, k: Tokens
    ) -> Tensor:
        """Return the row of the tensor `table` for each pair of query and key."""
        file = cast(ModuleType, self).__file__
        raise UsageError(f"{file}: has a learned 'table', but no 'bias_index', the row of a pair")

    def keys_in_sight(self, config: Any) -> tuple[int, int] | None:
        """Return how many keys to the left and to the right a query sees; None: it is no window."""
        return None

    def head_groups(self, config: Any) -> tuple[FrozenConfig, ...]:
        """Return the settings for equal groups of heads, first heads first; empty: one for all."""
        return ()

    def is_bounded(self, config: Any) -> bool:
        """Return whether sequences may have no more than `config.max_length` tokens."""
        return False

    def prepare(self, request: Request) -> Any:
        """Return what the layers of a step share, `request.prepared` in `attend`."""
        return None


class MaskKind(Kind, Protocol):
    """A kind that is a softmax over a mask, with or without a learned bias."""

    @abstractmethod
    def mask(self, config: Any, q: Tokens, k: Tokens) -> Tensor:
        """Return True where the query may see the key; `q` and `k` broadcast."""


class CustomKind(Kind, Protocol):
    """A kind with its own computation; its `mask`, if it has one, is for drawings."""

    @abstractmethod
    def attend(
        self,
        request: Request,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tensors: Learned,
        state: State | None,
    ) -> Tensor:
        """Return (N, H, D) for a pack.

        `tensors` are the learned tensors of this layer. `state` is the state of the B sequences in
        generation, tensors (B, …). The first call fills it; later calls read and update it, with
        the same number of new tokens for each sequence. Where a state grows, its second
        dimension is tokens; `Cache.append` fills the shorter one with zeros.
        """


CONTRACTS = (MaskKind, CustomKind)
