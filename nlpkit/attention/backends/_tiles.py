"""Which rows meet which keys: the pack cut into tiles that suit a CPU.

- A tile is some rows against all keys from the first to the last that any of them sees.
- Short documents of about one length share a tile, because a call costs more than some padding.
- Tokens that a kind wants first (`SORT_FIRST`) are sorted to the front of their document, so that
  CPM-Ant's mask is a square and a triangle, 2/3 of the full arithmetic on average.

N packed tokens, M tokens with padding, H heads, D width of a head; a group has G documents of L
tokens, a tile R of its rows and E of its keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nlpkit.attention.contract import Request

# Pairs of tokens that take as long to compute as the calls for one more tile.
_PAIRS_PER_CALL = 4096
# Pairs of a group's tile: scores and their gradient should stay in the cache.
_MAX_PAIRS = 65536


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows of a group, the keys that they need, and what is added to their scores."""

    group: slice  # of the M * H rows of a packed tensor
    length: int  # L
    rows: slice
    keys: slice
    hidden: Tensor | None  # (G * R * E,) pairs that the mask rules out; None: none
    bias_rows: Tensor | None  # (G * R * E,) rows of the bias table

    def of_rows(self, x: Tensor) -> Tensor:
        """Return this tile's rows of `x` (M * H, D), as (H * G, R, D)."""
        return x[self.group].view(-1, self.length, x.shape[1])[:, self.rows]

    def of_keys(self, x: Tensor) -> Tensor:
        """Return this tile's keys of `x` (M * H, D), as (H * G, E, D)."""
        return x[self.group].view(-1, self.length, x.shape[1])[:, self.keys]


class Tiling:
    """The tiles of a pack, and the order of tokens and heads that they need."""

    def __init__(self, request: Request, most_rows: int):
        self.tiles: list[Tile] = []
        everyone = _sorted_first(request)
        order: list[Tensor] = []  # rows of (N * H, D), -1 for padding
        empty: list[Tensor] = []
        layout, heads = request.layout, torch.arange(request.heads)[:, None, None]
        first = 0
        for documents in _groups(layout.lengths):
            starts = torch.tensor([layout.starts[document] for document in documents])[:, None]
            lengths = torch.tensor([layout.lengths[document] for document in documents])[:, None]
            place = torch.arange(layout.lengths[documents[0]])
            tokens = everyone[starts + place.minimum(lengths - 1)]  # (G, L)
            padding = place >= lengths
            group = slice(first, first + tokens.numel() * request.heads)
            first = group.stop
            tiles, none_seen = _cut(request, tokens, padding, group, most_rows)
            self.tiles += tiles
            order.append(torch.where(padding, -1, tokens * request.heads + heads).flatten())
            empty.append(none_seen.expand(request.heads, -1, -1).flatten())
        places = torch.cat(order)
        real = (places >= 0).nonzero().squeeze(1)
        self._heads = request.heads
        self._order = places.clamp(min=0)  # (M * H,)
        self._inverse = torch.empty_like(real)  # (N * H,)
        self._inverse[places[real]] = real
        rows = torch.cat(empty)[:, None]
        # (M * H, 1), rows that are padding or see nothing; None: no such row
        self.empty_rows = rows if rows.any() else None

    def pack(self, x: Tensor) -> Tensor:
        """Return `x` (N, H, D) in the order of the tiles, (M * H, D)."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self._order)

    def unpack(self, x: Tensor) -> Tensor:
        """Return `x` (M * H, D) in the order of the pack, (N, H, D)."""
        return x.index_select(0, self._inverse).view(-1, self._heads, x.shape[-1])


def _groups(lengths: tuple[int, ...]) -> list[list[int]]:
    """Return the documents in groups to be computed as one, the longest of each first."""
    groups: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        if groups:
            longest = lengths[groups[-1][0]]
            wasted = longest**2 - lengths[document] ** 2
            if wasted < _PAIRS_PER_CALL and (len(groups[-1]) + 1) * longest**2 <= _MAX_PAIRS:
                groups[-1].append(document)
                continue
        groups.append([document])
    return groups


def _sorted_first(request: Request) -> Tensor:
    """Return the tokens (N,), of each document those in front that the kind wants first."""
    key = request.layout.document_ids * 2
    if request.kind.SORT_FIRST is not None:
        key = key + (~request.fields[request.kind.SORT_FIRST].bool()).long()
    return torch.argsort(key, stable=True)


def _cut(
    request: Request, tokens: Tensor, padding: Tensor, group: slice, most_rows: int
) -> tuple[list[Tile], Tensor]:
    """Return the tiles of the group of `tokens` (G, L), and which rows see nothing, (G, L)."""
    count, length = tokens.shape
    q, k = tokens[:, :, None], tokens[:, None, :]
    visible = request.mask(q, k).expand(count, length, length)
    visible = visible & ~padding[:, None, :]
    empty_rows = ~visible.any(-1) | padding
    # Such a row is computed as if it saw the first key, and then set to zero.
    visible[:, :, 0] |= empty_rows
    bias_rows = None if request.table is None else request.bias_index(q, k)
    step = math.ceil(length / math.ceil(length / most_rows))
    tiles = []
    for top in range(0, length, step):
        rows = slice(top, min(top + step, length))
        seen = visible[:, rows].any(0).any(0).nonzero()
        keys = slice(int(seen[0]), int(seen[-1]) + 1)
        hidden = ~visible[:, rows, keys].reshape(-1)
        tile = Tile(
            group=group,
            length=length,
            rows=rows,
            keys=keys,
            hidden=hidden if hidden.any() else None,
            bias_rows=None if bias_rows is None else bias_rows[:, rows, keys].reshape(-1),
        )
        tiles.append(tile)
    return tiles, empty_rows
