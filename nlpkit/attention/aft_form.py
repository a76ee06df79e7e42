"""Attention-free transformer: for each channel its own weights exp(k_j + w_ij), over packs.

The sums of weights and of weights times values are kept as multiples of exp(m), where m is the
largest exponent among the tokens that were added (`Sums`). So nothing overflows, and no token
changes what those to its left get.

With w, the causal form takes each token's left in blocks of 1, 2, 4, … tokens: a block of h tokens
is seen by the h tokens behind it. Where w is 0 beyond a window, the rest are running sums.

N tokens of the pack, C channels, P blocks of h tokens, R tokens behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

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

    def add_(self, other: Sums, rows: Tensor) -> None:
        """Add `other` (R tokens) to the tokens `rows` (R,), in place and without gradient."""
        old = self.largest.index_select(0, rows)
        largest = torch.maximum(old, other.largest)
        own = self.both.index_select(0, rows).mul_((old - largest).exp_()[:, None])
        own.addcmul_(other.both, (other.largest - largest).exp_()[:, None])
        self.largest.index_copy_(0, rows, largest)
        self.both.index_copy_(0, rows, own)

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

    def biases(self, biases: Biases, longest: int) -> Tensor:
        """Return w (U, h, h) of the tokens behind and those of a block, for each of `offsets`."""
        size = self.blocks.shape[1]
        to = self.offsets[:, None] + torch.arange(size, device=self.offsets.device)
        return biases((to + size).clamp(max=longest - 1), to)

    def factors(self, k: Tensor, v: Tensor, w: Tensor) -> Factors:
        """Return what the weights of the tokens behind are made of."""
        top_w = w.amax(2, keepdim=True)
        keys, values = (self.of_blocks(x) for x in (k, v))
        top = keys.amax(1, keepdim=True)
        weights = (keys - top).exp_()
        largest = (top + top_w.index_select(0, self.which)).flatten(0, 1)
        return Factors(
            (w - top_w).exp_().index_select(0, self.which),
            weights,
            values,
            largest.index_select(0, self.places),
        )

    def of_blocks(self, x: Tensor) -> Tensor:
        """Return the tokens of the blocks, (P, h, C), from those of the pack."""
        return x.index_select(0, self.blocks.flatten()).unflatten(0, self.blocks.shape)

    def behind(self, x: Tensor) -> Tensor:
        """Return (P, h, …), zeros where no token is, from those behind the blocks, (R, …)."""
        filled = x.new_zeros(self.blocks.numel(), *x.shape[1:])
        return filled.index_copy_(0, self.places, x).unflatten(0, self.blocks.shape)


class Factors(NamedTuple):
    """Of the weight exp(k + w), divided by exp(largest), for tokens behind blocks."""

    of_pairs: Tensor  # (P, h, h) from w
    of_keys: Tensor  # (P, h, C) from k
    values: Tensor  # (P, h, C)
    largest: Tensor  # (R, C)

    @property
    def both(self) -> Tensor:
        """Weighted values and weights of the keys, (P, h, 2 C)."""
        return torch.cat([self.of_keys * self.values, self.of_keys], 2)


@dataclass(frozen=True)
class Plan:
    """How the tokens of a pack see those to their left, the same for all layers."""

    begins: Tensor  # (N,) where documents begin
    positions: Tensor  # (N,) of tokens in their documents
    levels: tuple[Level, ...]
    far: Tensor  # tokens that see running sums
    until: Tensor  # of which token each of them sees the sums
    longest: int  # positions that w has

    def own(self, biases: Biases) -> Tensor:
        """Return w of each token and itself, (N, 1)."""
        return biases(self.positions[:, None], self.positions[:, None]).flatten(1)

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


class _Causal(torch.autograd.Function):
    """The mean of each token and all to its left; the backward pass computes weights again."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, plan: Plan, near: int | None
    ) -> Tensor:
        """Return (N, C) from keys and values; `rows` and `columns` are the matrices of w."""
        biases = biases_of(rows, columns, near)
        sums = Sums(k + plan.own(biases), torch.stack([v, torch.ones_like(v)], 1))
        for level in plan.levels:
            factors = level.factors(k, v, level.biases(biases, plan.longest))
            both = (factors.of_pairs @ factors.both).flatten(0, 1).index_select(0, level.places)
            sums.add_(Sums(factors.largest, both.unflatten(1, (2, -1))), level.rows)
        if len(plan.far):
            sums.add_(simple(k, v, plan.begins).at(plan.until), plan.far)
        mean = sums.mean
        ctx.save_for_backward(k, v, rows, columns, sums.largest, sums.both[:, 1], mean)
        ctx.plan, ctx.near = plan, near
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of k, v and the matrices of w."""
        k, v, rows, columns, largest, weights, mean = ctx.saved_tensors
        plan: Plan = ctx.plan
        of_values = given / weights
        of_both = torch.stack([of_values, -(of_values * mean)], 1)  # of the sums, (N, 2, C)
        matrices = [x.detach().requires_grad_() for x in (rows, columns)]
        with torch.enable_grad():
            biases = biases_of(matrices[0], matrices[1], ctx.near)
            own = plan.own(biases)
        weight = (k + own.detach() - largest).exp_()
        of_v = weight * of_values
        of_k = of_v * v + weight * of_both[:, 1]
        found = list(torch.autograd.grad(own, matrices, of_k.sum(1, keepdim=True)))
        for level in plan.levels:
            with torch.enable_grad():
                w = level.biases(biases, plan.longest)
            factors = level.factors(k, v, w.detach())
            scale = (factors.largest - largest.index_select(0, level.rows)).exp_()
            later = of_both.index_select(0, level.rows).mul_(scale[:, None]).flatten(1)
            later = level.behind(later)  # (P, h, 2 C)
            to_values, to_weights = (factors.of_pairs.mT @ later).chunk(2, 2)
            to_values = to_values * factors.of_keys
            to_keys = torch.addcmul(to_values * factors.values, to_weights, factors.of_keys)
            blocks = level.blocks.flatten()
            of_v.index_add_(0, blocks, to_values.flatten(0, 1))
            of_k.index_add_(0, blocks, to_keys.flatten(0, 1))
            of_pairs = (later @ factors.both.mT).mul_(factors.of_pairs)
            of_w = torch.zeros_like(w).index_add_(0, level.which, of_pairs)
            for total, more in zip(found, torch.autograd.grad(w, matrices, of_w), strict=True):
                total += more
        if len(plan.far):
            with torch.enable_grad():
                inputs = [x.detach().requires_grad_() for x in (k, v)]
                far = simple(inputs[0], inputs[1], plan.begins).at(plan.until)
            scale = (far.largest - largest.index_select(0, plan.far)).exp_()
            later = of_both.index_select(0, plan.far).mul_(scale[:, None])
            for total, more in zip(
                (of_k, of_v), torch.autograd.grad(far.both, inputs, later), strict=True
            ):
                total += more
        return of_k, of_v, found[0], found[1], None, None


def causal(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, plan: Plan, near: int | None
) -> Tensor:
    """Return the mean (N, C) of the values of each token and all to its left."""
    mean: Tensor = _Causal.apply(k, v, rows, columns, plan, near)
    return mean


def biases_of(rows: Tensor, columns: Tensor, near: int | None) -> Biases:
    """Return w, the product of two matrices, and 0 from the distance `near` on (None: nowhere)."""

    def biases(i: Tensor, j: Tensor) -> Tensor:
        w = F.embedding(i, rows) @ F.embedding(j, columns).mT
        if near is None:
            return w
        return w * ((i[..., :, None] - j[..., None, :]).abs() < near)

    return biases


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
