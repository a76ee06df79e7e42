"""The tiles of a pack: blocks of queries and keys that are computed together on a CPU.

- A tile has some rows, and all keys from the first to the last that any of these rows sees.
- Short documents of similar length share a tile, because a call costs more than some padding.
- Tokens with the field `SORT_FIRST` of the kind are sorted to the front of their document.
  CPM-Ant's mask is then a square and a triangle, on average 2/3 of the full arithmetic.

N packed tokens, M tokens with padding, H heads, K of keys, D width of a head. A group has G
documents of L tokens; a tile has R of its rows and E of its keys.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nlpkit.contracts.request import Request

# Number of token pairs that take as long to compute as the calls for one more tile.
_PAIRS_PER_CALL = 4096
# Token pairs in a tile of a group: the scores and their gradient should fit in the CPU's cache.
_MAX_PAIRS = 65536


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows of a group, the keys that they see, their mask and their bias."""

    group: slice  # of the M * H rows of a packed tensor
    length: int  # L
    rows: slice
    keys: slice
    hidden: Tensor | None  # (G * R * E,) True for masked pairs; None if no pair is masked
    bias_rows: Tensor | None  # (G * R * E,) rows of the bias table

    def take_rows(self, x: Tensor) -> Tensor:
        """Return this tile's rows of `x` (M * H, D), as (H * G, R, D)."""
        return x[self.group].view(-1, self.length, x.shape[1])[:, self.rows]

    def take_keys(self, x: Tensor) -> Tensor:
        """Return this tile's keys of `x` (M * H, D), as (H * G, E, D)."""
        return x[self.group].view(-1, self.length, x.shape[1])[:, self.keys]


class Tiling:
    """The tiles of a pack, and the order of tokens and heads in them."""

    def __init__(self, request: Request, most_rows: int):
        self.tiles: list[Tile] = []
        sorted_tokens = _sort_tokens(request)
        order: list[Tensor] = []  # rows of (N * H, D), -1 for padding
        empty: list[Tensor] = []
        layout, heads = request.layout, torch.arange(request.heads)[:, None, None]
        first = 0
        for documents in _group_documents(layout.lengths):
            starts = torch.tensor([layout.starts[document] for document in documents])[:, None]
            lengths = torch.tensor([layout.lengths[document] for document in documents])[:, None]
            position = torch.arange(layout.lengths[documents[0]])
            tokens = sorted_tokens[starts + position.minimum(lengths - 1)]  # (G, L)
            padding = position >= lengths
            group = slice(first, first + tokens.numel() * request.heads)
            first = group.stop
            tiles, empty_rows = _make_tiles(request, tokens, padding, group, most_rows)
            self.tiles += tiles
            order.append(torch.where(padding, -1, tokens * request.heads + heads).flatten())
            empty.append(empty_rows.expand(request.heads, -1, -1).flatten())
        padded_order = torch.cat(order)
        real = (padded_order >= 0).nonzero().squeeze(1)
        self._heads = request.heads
        self._order = padded_order.clamp(min=0)  # (M * H,)
        token, head = self._order // request.heads, self._order % request.heads
        self._key_order = token * request.key_heads + head // (request.heads // request.key_heads)
        self._inverse = torch.empty_like(real)  # (N * H,)
        self._inverse[padded_order[real]] = real
        # (number of them,), rows that are padding or see no key
        self.empty_rows = torch.cat(empty).nonzero().squeeze(1)

    def pack(self, x: Tensor) -> Tensor:
        """Return `x` (N, H, D) in the order of the tiles, (M * H, D)."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self._order)

    def pack_keys(self, x: Tensor) -> Tensor:
        """Return keys or values `x` (N, K, D), each for its heads, in the same order."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self._key_order)

    def unpack(self, x: Tensor) -> Tensor:
        """Return `x` (M * H, D) in the order of the pack, (N, H, D)."""
        return x.index_select(0, self._inverse).view(-1, self._heads, x.shape[-1])


def _group_documents(lengths: tuple[int, ...]) -> list[list[int]]:
    """Return groups of documents to compute together; each group begins with its longest one."""
    groups: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        if groups:
            longest = lengths[groups[-1][0]]
            padded_pairs = longest**2 - lengths[document] ** 2
            if padded_pairs < _PAIRS_PER_CALL and (len(groups[-1]) + 1) * longest**2 <= _MAX_PAIRS:
                groups[-1].append(document)
                continue
        groups.append([document])
    return groups


def _sort_tokens(request: Request) -> Tensor:
    """Return the token indices (N,), sorted by document, then by the field `SORT_FIRST`."""
    key = request.layout.document_ids * 2
    if request.kind.SORT_FIRST is not None:
        key = key + (~request.fields[request.kind.SORT_FIRST].bool()).long()
    return torch.argsort(key, stable=True)


def _make_tiles(
    request: Request, tokens: Tensor, padding: Tensor, group: slice, most_rows: int
) -> tuple[list[Tile], Tensor]:
    """Return the tiles of a group with `tokens` (G, L), and its rows that see no key, (G, L)."""
    count, length = tokens.shape
    step = math.ceil(length / math.ceil(length / most_rows))
    slices = [slice(top, min(top + step, length)) for top in range(0, length, step)]
    if count == 1 and (sight := _find_window(request)) is not None:
        return [_make_window_tile(request, tokens, r, group, sight) for r in slices], padding
    q, k = tokens[:, :, None], tokens[:, None, :]
    visible = request.mask(q, k).expand(count, length, length) & ~padding[:, None, :]
    empty_rows = ~visible.any(-1) | padding
    # An empty row is computed as if it saw the first key; its output is then set to zero.
    visible[:, :, 0] |= empty_rows
    bias_rows = None if request.table is None else request.bias_index(q, k)
    tiles = []
    for rows in slices:
        seen = visible[:, rows].any(0).any(0).nonzero()
        keys = slice(int(seen[0]), int(seen[-1]) + 1)
        bias = None if bias_rows is None else bias_rows[:, rows, keys].reshape(-1)
        hidden = ~visible[:, rows, keys].reshape(-1)
        tiles.append(Tile(group, length, rows, keys, hidden if hidden.any() else None, bias))
    return tiles, empty_rows


def _find_window(request: Request) -> tuple[int, int] | None:
    """Return how many keys to the left and right a query sees, or None if they are no window."""
    window = request.window
    if window is None or min(window) < 0:
        return None
    # A batch may bring positions of its own, which need not count the tokens.
    position = request.fields.get("position", request.layout.positions)
    return window if torch.equal(position, request.layout.positions) else None


def _make_window_tile(
    request: Request, tokens: Tensor, rows: slice, group: slice, sight: tuple[int, int]
) -> Tile:
    """Return the tile of these rows of one document, (1, L), without a mask of all its pairs."""
    length = tokens.shape[1]
    keys = slice(max(0, rows.start - sight[0]), min(length, rows.stop + sight[1]))
    hidden = ~request.mask(tokens[0, rows, None], tokens[0, None, keys]).reshape(-1)
    return Tile(group, length, rows, keys, hidden if hidden.any() else None, None)
