"""A pack in chunks of equal size, whatever its documents, and what passes from one to the next.

N tokens of the pack, n chunks of C tokens, g chunks of a group, H heads, D width of a head.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.contracts.request import Layout

CHUNK = 64  # tokens: larger chunks have larger products, and more of them
_GROUP = 2**18  # numbers in the queries of a group of chunks: 1 MiB, which fits into a cache


@dataclass(frozen=True)
class Chunks:
    """The chunks of a pack, the same for all layers."""

    size: int  # C
    total: int  # N
    mask: Tensor  # (n, 1, C, C) 1 where the query sees the key
    begun: Tensor  # (n, 1, C, 1) 1 where the document of the token has begun in an earlier chunk
    going_on: Tensor  # (n, 1, C, 1) 1 where it goes on in the next chunk
    passing: tuple[bool, ...]  # whether one document has begun before a chunk and goes on after it
    positions: Tensor  # (n, 1, C, 1) of each token in its document
    edges: tuple[int, ...]  # where documents begin, and N

    @classmethod
    def of(cls, layout: Layout, positions: Tensor, dtype: torch.dtype, size: int = CHUNK) -> Chunks:
        """Return the chunks of a pack; `dtype` is that of products and sums."""
        count = -(-layout.total // size)
        rest = count * size - layout.total  # what fills the last chunk is a document of its own
        document = F.pad(layout.document_ids, (0, rest), value=len(layout.lengths))
        document = document.view(count, size)
        none = document.new_full((1, 1), -1)
        begun = document == torch.cat([none, document[:-1, -1:]])
        going_on = document == torch.cat([document[1:, :1], none])
        same = document[:, :, None] == document[:, None, :]
        passing = [False] * count
        for start, stop in layout.spans:  # of these chunks the first and last token are inside
            for number in range(start // size + 1, (stop - 1) // size):
                passing[number] = True
        return cls(
            size,
            layout.total,
            same.tril().to(dtype)[:, None],
            begun.to(dtype)[:, None, :, None],
            going_on.to(dtype)[:, None, :, None],
            tuple(passing),
            F.pad(positions, (0, rest)).view(count, 1, size, 1),
            layout.starts,
        )

    def groups(self, width: int) -> list[slice]:
        """Return the chunks in groups; `width` is the number of features of a token."""
        step = count = len(self.passing)
        if self.mask.device.type == "cpu":  # other devices want large products
            step = max(1, _GROUP // (self.size * width))
        return [slice(i, min(i + step, count)) for i in range(0, count, step)]

    def tokens(self, group: slice) -> slice:
        """Return where the tokens of a group are in the pack."""
        return slice(group.start * self.size, min(group.stop * self.size, self.total))

    def is_inner(self, group: slice) -> bool:
        """Return whether all tokens are of one document, from an earlier to a later chunk."""
        first = bisect_left(self.edges, group.start * self.size)
        return self.edges[first] > group.stop * self.size

    def keep_late(self, x: Tensor, group: slice) -> Tensor:
        """Return x where the document has begun in an earlier chunk, else 0."""
        return x if self.is_inner(group) else x * self.begun[group]

    def keep_early(self, x: Tensor, group: slice) -> Tensor:
        """Return x where the document goes on in the next chunk, else 0."""
        return x if self.is_inner(group) else x * self.going_on[group]

    def cut(self, x: Tensor, group: slice, whole: bool = True) -> Tensor:
        """Return the tokens of a group, (g, H, C, D), from those of the pack, (N, H, D).

        If not `whole`, x are those of the group alone.
        """
        rows = (x[self.tokens(group)] if whole else x).to(self.mask.dtype)
        if missing := (group.stop - group.start) * self.size - len(rows):
            rows = F.pad(rows, (0, 0, 0, 0, 0, missing))
        return rows.unflatten(0, (-1, self.size)).transpose(1, 2).contiguous()

    def put(self, x: Tensor, group: slice, into: Tensor) -> None:
        """Write the tokens of a group, (g, H, C, D), into those of the pack."""
        rows = into[self.tokens(group)]
        rows.copy_(x.transpose(1, 2).flatten(0, 1)[: len(rows)])

    def scan_states(
        self, own: Tensor, before: Tensor | None, group: slice, backwards: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the state before each chunk of a group, and that behind the last one.

        `own` (g, …) is what each chunk adds, `before` (…) the state before the first one; None: 0.
        The gradients of both come from those of the results by the same sums, `backwards`.
        """
        found = torch.empty_like(own)
        before = torch.zeros_like(own[0]) if before is None else before
        numbers = range(len(own))
        for number in reversed(numbers) if backwards else numbers:
            found[number] = before
            passes = self.passing[group.start + number]
            before = own[number].add_(before) if passes else own[number]
        return found, before
