"""What kinds and backends of attention get: the boundaries of a pack, and the request of a step.

N packed tokens, S sequences, H heads of queries, G of keys and values, D width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nlpkit.contracts.kind import Kernel, Kind, Tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Layout:
    """The boundaries of a pack, on the host as integers and on the device as tensors.

    The host has its own copy because a loop over documents must not wait for a GPU.
    """

    def __init__(
        self, lengths: Sequence[int], device: torch.device | str = "cpu", past: Sequence[int] = ()
    ):
        """Take the lengths of the sequences, and how many tokens of each are cached, if any are."""
        import torch

        self.lengths = tuple(int(length) for length in lengths)
        if min(self.lengths, default=0) < 1:
            raise ValueError(f"a pack needs sequences of at least one token; got {self.lengths}")
        self.device = torch.device(device)
        self.past = tuple(past) or None
        self.starts = (0, *accumulate(self.lengths))  # S + 1 host integers
        self.total = self.starts[-1]
        self.max_length = max(self.lengths)
        self.fields: Mapping[str, Tensor | None] = {}  # what kinds of attention read, (N,) each

    def with_fields(self, fields: Mapping[str, Tensor | None]) -> Layout:
        """Return this layout with fields (N,), besides the `position` and `length` that it has."""
        layout = copy(self)
        layout.fields = fields
        return layout

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence, cached tokens included."""
        if self.past is None:
            return self.max_length
        return max(map(sum, zip(self.past, self.lengths, strict=True)))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and one past the last index of each sequence."""
        return list(zip(self.starts[:-1], self.starts[1:], strict=True))

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Cumulative lengths, (S + 1,) int32, the form that variable-length kernels read."""
        import torch

        return torch.tensor(self.starts, dtype=torch.int32, device=self.device)

    @cached_property
    def document_ids(self) -> Tensor:
        """Index of the sequence of each token, (N,) int64."""
        import torch

        sizes = torch.tensor(self.lengths, device=self.device)
        ids = torch.arange(len(self.lengths), device=self.device)
        return torch.repeat_interleave(ids, sizes, output_size=self.total)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its own sequence, from 0, (N,) int64."""
        import torch

        first = self.cu_seqlens[:-1].long()
        if self.past is not None:
            first = first - torch.tensor(self.past, device=self.device)
        return torch.arange(self.total, device=self.device) - first[self.document_ids]

    @cached_property
    def token_lengths(self) -> Tensor:
        """Length of the sequence of each token, cached tokens included, (N,) int64."""
        import torch

        past = self.past or (0,) * len(self.lengths)
        sizes = [old + new for old, new in zip(past, self.lengths, strict=True)]
        return torch.tensor(sizes, device=self.device)[self.document_ids]


@dataclass(frozen=True)
class Heads:
    """The heads of a model's layers, and how their attention is computed."""

    count: int
    width: int
    dtype: torch.dtype
    training: bool
    key_heads: int | None = None  # of keys and values, each for `count / key_heads` heads in turn
    dropout: float = 0.0  # of the probabilities, in training
    scale: float | None = None  # None: 1 / sqrt(width)
    backend: str = "auto"  # a name, or `auto`


@dataclass(frozen=True)
class Request:
    """All that a backend gets but q, k and v.

    `keys` is the layout of keys and values; sequence i of the queries sees sequence i of the keys.
    """

    kind: Kind
    config: Any  # the settings of the kind
    layout: Layout
    keys: Layout
    fields: Mapping[str, Tensor]
    key_fields: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    heads: int
    key_heads: int
    head_dim: int
    dtype: torch.dtype
    training: bool
    dropout: float
    scale: float
    prepared: Any = None  # what a kind with its own computation has prepared for the step

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.layout.device

    @property
    def table(self) -> Tensor | None:
        """The learned bias, (rows, H), or None."""
        return self.tensors.get("table")

    @property
    def is_cross(self) -> bool:
        """Whether keys and values come from other sequences than the queries (cross attention)."""
        return self.keys is not self.layout

    @property
    def kernel(self) -> Kernel | None:
        """`causal` or `full` if a fused kernel needs no mask and no bias, else None."""
        kernel = self.kind.KERNEL
        if self.kind.KERNEL_WITHOUT_FIELDS and not {*self.kind.OPTIONAL} & self.fields.keys():
            kernel = self.kind.KERNEL_WITHOUT_FIELDS
        return None if self.table is not None or (self.is_cross and kernel == "causal") else kernel

    @property
    def window(self) -> tuple[int, int] | None:
        """Keys to the left and to the right that a query sees, -1 for all of them.

        None if a fused kernel with a sliding window cannot compute the mask, or if there is a bias.
        """
        if self.kernel is not None:
            return (-1, 0) if self.kernel == "causal" else (-1, -1)
        if self.table is not None or self.is_cross:
            return None
        return self.kind.keys_in_sight(self.config)

    def mask(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the kind's mask for these indices, without the boundaries of sequences."""
        assert self.kind.mask is not None
        return self.kind.mask(self.config, Tokens(self.fields, q), Tokens(self.key_fields, k))

    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the kind's mask for these indices; False across sequences."""
        return self.mask(q, k) & (self.layout.document_ids[q] == self.keys.document_ids[k])

    def bias_index(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the row of the bias table for each pair of indices."""
        queries, keys = Tokens(self.fields, q), Tokens(self.key_fields, k)
        return self.kind.bias_index(self.config, self.buffers, queries, keys)
