"""Where the sequences of a pack begin and end (N packed tokens, S sequences)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


class Layout:
    """The boundaries of a pack, on the host as integers and on the device as tensors.

    The host keeps its own copy because a loop over documents must not wait for a GPU.
    """

    def __init__(
        self, lengths: tuple[int, ...], device: torch.device, past: tuple[int, ...] | None = None
    ):
        self.lengths = lengths
        self.device = device
        self.past = past  # tokens that a cache holds of each sequence, before those of the pack
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

        `past`, if not empty, says how many tokens of each sequence a cache holds already.
        """
        sizes = tuple(int(length) for length in lengths)
        if not sizes or min(sizes) < 1:
            raise ValueError(f"a pack needs sequences of at least one token; got lengths {sizes}")
        if past and len(past) != len(sizes):
            raise ValueError(f"{len(sizes)} sequences go on from {len(past)} in the cache")
        return cls(sizes, torch.device(device), tuple(past) or None)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, those in the cache included."""
        if self.past is None:
            return self.max_length
        return max(map(sum, zip(self.past, self.lengths, strict=True)))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and one past the last index of each sequence."""
        return list(zip(self.starts[:-1], self.starts[1:], strict=True))

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Cumulative lengths, (S + 1,) int32, as the variable-length kernels want them."""
        return torch.tensor(self.starts, dtype=torch.int32, device=self.device)

    @cached_property
    def document_ids(self) -> Tensor:
        """Which sequence each token is in, (N,) int64."""
        sizes = torch.tensor(self.lengths, device=self.device)
        ids = torch.arange(len(self.lengths), device=self.device)
        return torch.repeat_interleave(ids, sizes, output_size=self.total)

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its own sequence, from 0, (N,) int64."""
        first = self.cu_seqlens[:-1].long()
        if self.past is not None:
            first = first - torch.tensor(self.past, device=self.device)
        return torch.arange(self.total, device=self.device) - first[self.document_ids]

    @cached_property
    def token_lengths(self) -> Tensor:
        """Tokens of the sequence that each token is in, those in the cache included, (N,) int64."""
        past = self.past or (0,) * len(self.lengths)
        sizes = [old + new for old, new in zip(past, self.lengths, strict=True)]
        return torch.tensor(sizes, device=self.device)[self.document_ids]
