"""The boundaries of the sequences in a pack (N packed tokens, S sequences)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


class Layout:
    """The boundaries of a pack, on the host as integers and on the device as tensors.

    The host has its own copy because a loop over documents must not wait for a GPU.
    """

    def __init__(
        self, lengths: tuple[int, ...], device: torch.device, past: tuple[int, ...] | None = None
    ):
        self.lengths = lengths
        self.device = device
        self.past = past  # cached tokens of each sequence, which precede those of the pack
        self.starts = (0, *accumulate(lengths))  # S + 1 host integers
        self.total = self.starts[-1]
        self.max_length = max(lengths)

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        device: torch.device | str = "cpu",
        past: Sequence[int] = (),
    ) -> Layout:
        """Return the layout of sequences of these lengths, each at least 1, in this order.

        `past`, if not empty, is the number of cached tokens of each sequence.

        Raises:
            ValueError: a length is below 1, or `past` and `lengths` differ in length.
        """
        sizes = tuple(int(length) for length in lengths)
        if not sizes or min(sizes) < 1:
            raise ValueError(f"a pack needs sequences of at least one token; got lengths {sizes}")
        if past and len(past) != len(sizes):
            raise ValueError(
                f"{len(sizes)} sequences cannot continue {len(past)} sequences of the cache"
            )
        return cls(sizes, torch.device(device), tuple(past) or None)

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
        return torch.tensor(self.starts, dtype=torch.int32, device=self.device)

    @cached_property
    def document_ids(self) -> Tensor:
        """Index of the sequence of each token, (N,) int64."""
        sizes = torch.tensor(self.lengths, device=self.device)
        ids = torch.arange(len(self.lengths), device=self.device)
        return torch.repeat_interleave(ids, sizes, output_size=self.total)

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its own sequence, from 0, (N,) int64."""
        first = self.cu_seqlens[:-1].long()
        if self.past is not None:
            first = first - torch.tensor(self.past, device=self.device)
        return torch.arange(self.total, device=self.device) - first[self.document_ids]

    @cached_property
    def token_lengths(self) -> Tensor:
        """Length of the sequence of each token, cached tokens included, (N,) int64."""
        past = self.past or (0,) * len(self.lengths)
        sizes = [old + new for old, new in zip(past, self.lengths, strict=True)]
        return torch.tensor(sizes, device=self.device)[self.document_ids]
