"""The pieces of a kind over a pack, cut into tiles that hold few hidden pairs.

Queries and keys of a piece are sorted by sequence, class and position. Then what a query sees is a
range of keys, for every pattern: for every L-th token the classes are the positions modulo L, and
are causal triangles side by side. The ranges are found by a search in the sorted keys, so no mask
of all pairs is ever made. A tile has some rows in turn and a part of the keys that they see.

N queries, K keys, M queries of a piece that see a key, R rows and E keys of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nlpkit.attention.contract import Request, Tokens
from nlpkit.attention.pieces import Piece

# Measured: smaller tiles hide fewer pairs, larger ones make matrix products more efficient.
_ROWS = 128
_KEYS = 512


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows and keys of a piece, in its order, and the hidden pairs (R, E); None if there is none.

    The tiles of the same rows follow each other; `is_first` begins them.
    """

    rows: slice
    keys: slice
    hidden: Tensor | None
    is_first: bool


@dataclass(frozen=True, eq=False)
class Cut:
    """A piece: its queries (M,) and keys in order, as indices of the pack, and its tiles."""

    queries: Tensor
    keys: Tensor
    tiles: tuple[Tile, ...]


def cuts(request: Request) -> list[Cut]:
    """Return the pieces of the request's kind that have a visible pair."""
    q = Tokens(request.fields, torch.arange(request.layout.total))
    k = Tokens(request.key_fields, torch.arange(request.keys.total))
    found = [_cut(request, piece, q, k) for piece in request.kind.pieces(request.config, q, k)]
    return [cut for cut in found if cut.tiles]


def _cut(request: Request, piece: Piece, q: Tokens, k: Tokens) -> Cut:
    query_class = torch.zeros_like(q.index) if piece.query_class is None else piece.query_class
    key_class = torch.zeros_like(k.index) if piece.key_class is None else piece.key_class
    classes = 1 + max(int(query_class.max()), int(key_class.max()))
    # One number for sequence, class and position. Position `end` is no token's, so that a range
    # that ends before position 0 ends behind the class before.
    end = 1 + max(int(q["position"].max()), int(k["position"].max()))
    of_queries = (request.layout.document_ids * classes + query_class) * (end + 1)
    of_keys = (request.keys.document_ids * classes + key_class) * (end + 1) + k["position"]
    seen = (key_class >= 0).nonzero().squeeze(1)
    sorted_keys, order = of_keys[seen].sort(stable=True)
    start = torch.searchsorted(sorted_keys, of_queries + piece.first.clamp(0, end))
    stop = torch.searchsorted(sorted_keys, of_queries + piece.last.clamp(-1, end), right=True)
    rows = (of_queries + q["position"]).sort(stable=True).indices
    rows = rows[(stop > start)[rows]]
    return Cut(rows, seen[order], tuple(_tiles(start[rows], stop[rows])))


def _tiles(start: Tensor, stop: Tensor) -> list[Tile]:
    """Return the tiles of rows that see the keys from `start` (M,) to `stop` (M,)."""
    if not len(start):
        return []
    # Where the keys are elsewhere than those of the row before, a tile would hide most of them.
    leaps = (start.diff().abs() > _ROWS).nonzero().squeeze(1) + 1
    bounds = [0, *leaps.tolist(), len(start)]
    tiles = []
    for top, bottom in zip(bounds[:-1], bounds[1:], strict=True):
        for rows in _even(top, bottom, _ROWS):
            first, last = start[rows], stop[rows]
            low, high = int(first.min()), int(last.max())
            for keys in _even(low, high, _KEYS):
                hidden = None
                if int(first.max()) > keys.start or int(last.min()) < keys.stop:
                    key = torch.arange(keys.start, keys.stop)
                    hidden = (key < first[:, None]) | (key >= last[:, None])
                tiles.append(Tile(rows, keys, hidden, keys.start == low))
    return tiles


def _even(start: int, stop: int, most: int) -> list[slice]:
    """Return slices of nearly equal size, each of at most `most`."""
    step = math.ceil((stop - start) / math.ceil((stop - start) / most))
    return [slice(i, min(i + step, stop)) for i in range(start, stop, step)]
