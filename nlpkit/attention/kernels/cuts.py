"""The ranges of a kind over a pack, cut into tiles that hold few hidden pairs.

Queries and keys of a range are sorted by sequence, class and position. Then what a query sees is a
slice of keys, for every pattern: for every L-th token the classes are the positions modulo L, and
are causal triangles side by side. The ranges are found by a search in the sorted keys, so no mask
of all pairs is ever made. A block has some rows in turn, and tiles: parts of the keys that they
see. Pairs are hidden only where the ranges of the first rows end, or those of the last rows begin.

N queries, K keys, H heads; a range has L keys and M queries that see one of them, a block R rows, a
tile E keys.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nlpkit.contracts.kind import Range, Tokens
from nlpkit.contracts.request import Request

# Measured: small tiles hold fewer hidden pairs, large ones make matrix products more efficient.
_ROWS = 128
_KEYS = 1024
_NARROW = 512  # rows that see fewer keys than that have tiles of half as many rows


@dataclass(frozen=True, eq=False)
class Tile:
    """Some keys of a range; `hidden` are columns of the tile with their (R, columns): 0 or -inf."""

    keys: slice
    hidden: tuple[tuple[slice, Tensor], ...]


@dataclass(frozen=True, eq=False)
class Block:
    """R rows of a range, and the tiles of the keys that they see."""

    rows: slice
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, eq=False)
class Order:
    """Tokens of a pack in an order; None: all of them as they are."""

    tokens: Tensor | None

    @classmethod
    def of(cls, tokens: Tensor, total: int) -> Order:
        """Return the order of these of `total` tokens."""
        if len(tokens) == total and bool((tokens == torch.arange(total)).all()):
            return cls(None)
        return cls(tokens)

    def take(self, x: Tensor) -> Tensor:
        """Return the tokens of x (N, H, D) in this order, (M, H, D)."""
        return x.contiguous() if self.tokens is None else x.index_select(0, self.tokens)

    def zeros(self, total: Tensor) -> Tensor:
        """Return zeros (M, H, D) to be added to `total`; where possible, `total` itself."""
        if self.tokens is None:
            return total
        return total.new_zeros(len(self.tokens), *total.shape[1:])

    def add(self, part: Tensor, total: Tensor) -> None:
        """Add what `zeros` gave to `total`."""
        if self.tokens is not None:
            total.index_add_(0, self.tokens, part)

    def put(self, part: Tensor, total: Tensor) -> None:
        """Write what was taken of `total` into it."""
        if self.tokens is not None:
            total.index_copy_(0, self.tokens, part)


@dataclass(frozen=True, eq=False)
class Cut:
    """A range: the order of the queries that see one of its keys, that of its keys, its blocks."""

    queries: Order
    keys: Order
    blocks: tuple[Block, ...]


def make_cuts(request: Request) -> list[Cut]:
    """Return the ranges of the request's kind that have a visible pair."""
    q = Tokens(request.fields, torch.arange(request.layout.total))
    k = Tokens(request.key_fields, torch.arange(request.keys.total))
    assert request.kind.ranges is not None  # else refused
    found = [_make_cut(request, each, q, k) for each in request.kind.ranges(request.config, q, k)]
    return [cut for cut in found if cut.blocks]


def _make_cut(request: Request, given: Range, q: Tokens, k: Tokens) -> Cut:
    query_class = torch.zeros_like(q.index) if given.query_class is None else given.query_class
    key_class = torch.zeros_like(k.index) if given.key_class is None else given.key_class
    classes = 1 + max(int(query_class.max()), int(key_class.max()))
    # One number for sequence, class and position. Position `end` is no token's, so that a range
    # that ends before position 0 ends behind the class before.
    end = 1 + max(int(q["position"].max()), int(k["position"].max()))
    of_queries = (request.layout.document_ids * classes + query_class) * (end + 1)
    of_keys = (request.keys.document_ids * classes + key_class) * (end + 1) + k["position"]
    seen = (key_class >= 0).nonzero().squeeze(1)
    sorted_keys, order = of_keys[seen].sort(stable=True)
    start = torch.searchsorted(sorted_keys, of_queries + given.first.clamp(0, end))
    stop = torch.searchsorted(sorted_keys, of_queries + given.last.clamp(-1, end), right=True)
    queries = (of_queries + q["position"]).sort(stable=True).indices
    queries = queries[(stop > start)[queries]]  # the others see nothing of this range
    start, stop = start[queries], stop[queries]
    return Cut(
        queries=Order.of(queries, len(of_queries)),
        keys=Order.of(seen[order], len(of_keys)),
        blocks=tuple(Block(r, _make_tiles(start[r], stop[r])) for r in _split_rows(start, stop)),
    )


def _split_rows(start: Tensor, stop: Tensor) -> list[slice]:
    # Where the keys are elsewhere than those of the row before, a tile would hide most of them.
    leaps = (start.diff().abs() >= _ROWS // 2).nonzero().squeeze(1) + 1
    bounds = [0, *leaps.tolist(), len(start)] if len(start) else []
    found: list[slice] = []
    for top, bottom in itertools.pairwise(bounds):
        widest = int((stop[top:bottom] - start[top:bottom]).max())
        found += _split_evenly(top, bottom, _ROWS // 2 if widest < _NARROW else _ROWS)
    return found


def _make_tiles(start: Tensor, stop: Tensor) -> tuple[Tile, ...]:
    low, all_from = int(start.min()), int(start.max())
    all_to, high = int(stop.min()), int(stop.max())
    tiles = []
    for keys in _split_evenly(low, high, _KEYS):
        left = slice(0, max(0, min(all_from, keys.stop) - keys.start))
        right = slice(max(0, all_to - keys.start), keys.stop - keys.start)
        parts = [right] if right.start <= left.start else [left, right]
        if left.stop > right.start > left.start:
            parts = [slice(0, right.stop)]
        hidden = []
        for columns in parts:
            if columns.stop > columns.start:
                key = torch.arange(keys.start + columns.start, keys.start + columns.stop)
                outside = (key < start[:, None]) | (key >= stop[:, None])
                mask = torch.zeros(outside.shape).masked_fill_(outside, -torch.inf)
                hidden.append((columns, mask))
        tiles.append(Tile(keys, tuple(hidden)))
    return tuple(tiles)


def _split_evenly(start: int, stop: int, most: int) -> list[slice]:
    """Return slices of nearly equal size, each of at most `most`."""
    step = math.ceil((stop - start) / math.ceil((stop - start) / most))
    return [slice(i, min(i + step, stop)) for i in range(start, stop, step)]
