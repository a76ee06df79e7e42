"""Attention-free transformer: for each channel its own weights exp(k_j + w_ij), over packs.

The sums of weights and of weights times values are kept as multiples of exp(m), where m is the
largest exponent among the tokens that were added (`Sums`). So nothing overflows, and no token
changes what those to its left get.

With w, the causal form takes each token's left in blocks of 1, 2, 4, … tokens: a block of h tokens
is seen by the h tokens behind it. Where w is 0 beyond a window, the rest are running sums.

N tokens of the pack, C channels, P blocks of h tokens, R tokens behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention.growing import seen
from nlpkit.attention.layout import Layout
from nlpkit.attention.running_sums import running_max, running_sums

# w of positions: (…, i) and (…, j) -> (…, i, j)
Biases = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sums:
    """Weighted values and weights of each token, both divided by exp(`largest`)."""

    largest: Tensor  # (N, C), a constant: it cancels out
    both: Tensor  # (N, 2, C): values, then weights

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the values, (N, C)."""
        values, weights = self.both.unbind(1)
        return values / weights

    def plus(self, other: Sums, rows: Tensor) -> Sums:
        """Return the sums with `other` (R tokens) added to the tokens `rows` (R,)."""
        if not len(rows):
            return self
        old = self.largest.index_select(0, rows)
        largest = torch.maximum(old, other.largest)
        own = self.both.index_select(0, rows) * (old - largest).exp()[:, None]
        both = own + other.both * (other.largest - largest).exp()[:, None]
        return Sums(self.largest.index_copy(0, rows, largest), self.both.index_copy(0, rows, both))

    def at(self, rows: Tensor) -> Sums:
        """Return the sums of the tokens `rows`."""
        return Sums(self.largest.index_select(0, rows), self.both.index_select(0, rows))


@dataclass(frozen=True)
class Level:
    """Blocks of h tokens of a document, each with up to h tokens behind it, which see the block."""

    blocks: Tensor  # (P, h) tokens
    rows: Tensor  # (R,) the tokens behind
    places: Tensor  # (R,) where they are among P * h
    offsets: Tensor  # (U,) positions where blocks begin
    which: Tensor  # (P,) which of these

    @classmethod
    def of(cls, layout: Layout, size: int, step: int) -> Level | None:
        """Return the blocks at positions 0, `step`, … with tokens behind them; None: no blocks."""
        found = [
            (start + offset, offset // step, stop)
            for start, stop in layout.spans
            for offset in range(0, stop - start - size, step)
        ]
        if not found:
            return None
        starts, which, stops = torch.tensor(found, device=layout.device).T
        inside = torch.arange(size, device=layout.device)
        blocks = starts[:, None] + inside
        behind = blocks + size
        exists = (behind < stops[:, None]).flatten()
        offsets = torch.arange(int(which.max()) + 1, device=layout.device) * step
        return cls(blocks, behind.flatten()[exists], exists.nonzero().squeeze(1), offsets, which)

    def sums(self, k: Tensor, v: Tensor, biases: Biases, longest: int) -> Sums:
        """Return what the blocks give to the tokens behind them, in the order of `rows`."""
        size = self.blocks.shape[1]
        inside = torch.arange(size, device=k.device)
        to = self.offsets[:, None] + inside
        w = biases((to + size).clamp(max=longest - 1), to)  # (U, h, h)
        top_w = w.detach().amax(2, keepdim=True)
        keys, values = (  # (P, h, C)
            x.index_select(0, self.blocks.flatten()).unflatten(0, (-1, size)) for x in (k, v)
        )
        top = keys.detach().amax(1, keepdim=True)
        weights = (keys - top).exp()
        factors = (w - top_w).exp().index_select(0, self.which)
        both = factors @ torch.cat([weights * values, weights], 2)  # (P, h, 2 C)
        largest = top + top_w.index_select(0, self.which)
        both = both.flatten(0, 1).index_select(0, self.places).unflatten(1, (2, -1))
        return Sums(largest.flatten(0, 1).index_select(0, self.places), both)


@dataclass(frozen=True)
class Plan:
    """How the tokens of a pack see those to their left, the same for all layers."""

    begins: Tensor  # (N,) where documents begin
    positions: Tensor  # (N,) of tokens in their documents
    levels: tuple[Level, ...]
    far: Tensor  # tokens that see running sums
    until: Tensor  # of which token each of them sees the sums
    longest: int  # positions that w has

    @classmethod
    def of(cls, layout: Layout, window: int | None, longest: int) -> Plan:
        """Return the plan; beyond the `window` w is 0 (None: nowhere)."""
        begins = torch.zeros(layout.total, dtype=torch.bool, device=layout.device)
        begins[layout.cu_seqlens[:-1].long()] = True
        largest = 1 << max((window or layout.max_length) - 1, 0).bit_length()
        sizes = [1 << power for power in range(largest.bit_length() - 1)]
        levels = [Level.of(layout, size, 2 * size) for size in sizes]
        none = torch.empty(0, dtype=torch.int64, device=layout.device)
        far = until = none
        if window is not None:
            levels.append(Level.of(layout, largest, largest))  # in sight of the next block, too
            far = (layout.positions >= 2 * largest).nonzero().squeeze(1)
            until = far - layout.positions[far] % largest - largest - 1
        found = tuple(level for level in levels if level is not None)
        return cls(begins, layout.positions, found, far, until, longest)


def simple(k: Tensor, v: Tensor, begins: Tensor) -> Sums:
    """Return the sums of each token and all to its left in its document, with w = 0."""
    with torch.no_grad():
        largest = running_max(k, begins)
        decay = torch.cat([largest[:1], largest[:-1]]).sub_(largest).exp_()
        decay.masked_fill_(begins[:, None], 0.0)
    weights = (k - largest).exp()
    return Sums(largest, running_sums(torch.stack([weights * v, weights], 1), decay))


def causal(k: Tensor, v: Tensor, plan: Plan, biases: Biases) -> Tensor:
    """Return the mean (N, C) of the values of each token and all to its left."""
    own = biases(plan.positions[:, None], plan.positions[:, None]).flatten(1)  # (N, 1)
    top = (k + own).detach()
    weight = (k + own - top).exp()
    sums = Sums(top, torch.stack([weight * v, weight], 1))
    for level in plan.levels:
        sums = sums.plus(level.sums(k, v, biases, plan.longest), level.rows)
    if len(plan.far):
        sums = sums.plus(simple(k, v, plan.begins).at(plan.until), plan.far)
    return sums.mean


def bidirectional(
    k: Tensor, v: Tensor, lengths: Sequence[int], window: int | None, biases: Biases | None
) -> Tensor:
    """Return the mean (N, C) of the values of each token's document; `biases` None: w = 0."""
    return torch.cat(list(_documents(k, v, lengths, window, biases)))


def _documents(
    k: Tensor, v: Tensor, lengths: Sequence[int], window: int | None, biases: Biases | None
) -> Iterator[Tensor]:
    for keys, values in zip(k.split(lengths), v.split(lengths), strict=True):
        weights = (keys - keys.detach().amax(0)).exp()
        both = torch.cat([weights * values, weights], 1)  # (n, 2 C)
        if biases is None:
            sums = both.sum(0, keepdim=True).expand(len(keys), -1)
        elif window is None:
            place = torch.arange(len(keys), device=k.device)
            w = biases(place, place)
            sums = (w - w.detach().amax(1, keepdim=True)).exp() @ both
        else:
            sums = both.sum(0) + _in_window(both, window, biases)
        above, below = sums.chunk(2, 1)
        yield above / below


def _in_window(both: Tensor, window: int, biases: Biases) -> Tensor:
    """Return the sums (n, 2 C) of (exp(w) - 1) both over a window, for blocks of queries.

    With the sum over the document, in which w counts as 0, these are all weights: so Zhai et al.
    2021 write their convolutional form.
    """
    count = -(-len(both) // window)
    place = torch.arange(count * window, device=both.device).unflatten(0, (count, window))
    last = len(both) - 1
    spread = torch.arange(3 * window, device=both.device) - window
    seen = place[:, :1] + spread  # (blocks, 3 window): the block and those beside it
    w = biases(place.clamp(max=last), seen.clamp(0, last))
    w = w * ((seen >= 0) & (seen <= last))[:, None]
    near = torch.expm1(w) @ F.pad(both, (0, 0, window, 2 * window))[seen + window]
    return near.flatten(0, 1)[: len(both)]


def continued(k: Tensor, v: Tensor, largest: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means (B, T, C) of T new tokens of each sequence, and their sums, with w = 0.

    k and v are (B, T, C); `largest` (B, C) and `both` (B, 2, C) are the sums before them.
    """
    out = []
    for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
        top = torch.maximum(largest, key)
        weight = (key - top).exp()
        both = both * (largest - top).exp()[:, None] + torch.stack([weight * value, weight], 1)
        largest = top
        out.append(both[:, 0] / both[:, 1])
    return torch.stack(out, 1), largest, both


def rows_of(keys: Tensor, values: Tensor, layout: Layout, biases: Biases, longest: int) -> Tensor:
    """Return the means (N, C) of new tokens, from the keys and values (B, T, C) of sequences."""
    owner, positions = layout.document_ids, layout.positions
    place = torch.arange(keys.shape[1], device=keys.device)
    w = biases(positions[:, None], place.clamp(max=longest - 1))[:, 0]  # (N, T)
    w = w.masked_fill(~seen(layout, keys.shape[1]), -torch.inf)
    weights = (keys[owner] + w[..., None]).softmax(1)
    return (weights * values[owner]).sum(1)
