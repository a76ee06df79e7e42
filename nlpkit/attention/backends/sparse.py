"""Attention of kinds that are made of few ranges of positions: hidden pairs are not computed.

Each range of the kind is FlashAttention over its own tiles (Dao et al. 2022, arXiv:2205.14135, alg.
1 and 4, read slowly in docs/flash_attention.md; `kernels/cuts` makes the tiles). A row goes on in
the next range with the output and logsumexp that it had. Backward needs only the logsumexp of all.
Half precision is computed in float32: on CPUs products of ever new shapes are slow otherwise.

N queries, H heads, D width of a head; a range has M tokens in its order, a block R rows, a tile E
keys.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.attention.kernels.cuts import Cut, Order, Tile, make_cuts
from nlpkit.attention.kernels.keep_mask import KeepMask, draw_seed
from nlpkit.contracts.request import Request

# All exponentials have base 2: on CPUs, torch's exp2 takes a third of the time of exp.
_LOG2E = math.log2(math.e)


def refuses(request: Request) -> str | None:
    """Return why the backend does not support this request, or None."""
    if request.kind.ranges is None:
        return "its mask is not made of ranges"
    if request.table is not None:
        return "learned bias"
    return None if request.device.type == "cpu" else "made for CPUs"


def suits(request: Request) -> bool:
    """Return whether the mask is made of ranges, outside of which nothing is computed."""
    return request.kind.ranges is not None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention over the visible tiles; differentiable once."""
    step = _Step(request)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Attention.apply(q, k, v, step)

    return attend


class _Step:
    """What the layers of a step share: the ranges, and buffers for the scores of a tile."""

    def __init__(self, request: Request):
        self.dropout, self.scale = request.dropout, request.scale
        self.exact = torch.promote_types(request.dtype, torch.float32)
        self.cuts: list[Cut] = make_cuts(request)
        self._buffers: dict[str, Tensor] = {}

    def take(self, order: Order, x: Tensor) -> Tensor:
        """Return the tokens of x (N, H, D) in this order, head by head, (H, M, D)."""
        return order.take(x).to(self.exact).transpose(0, 1)

    def multiply(self, name: str, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        """Return `a @ b * scale`, in the buffer `name`, which all tiles and layers share."""
        shape = a.shape[0], a.shape[1], b.shape[2]
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=self.exact)
        out = buffer[:size].view(shape)
        return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)

    def compute_scores(self, tile: Tile, Q: Tensor, K: Tensor) -> Tensor:
        """Return the scores of a tile, in units of log 2, (H, R, E); -inf where hidden."""
        S = self.multiply("scores", Q, K.mT, self.scale * _LOG2E)
        for columns, hidden in tile.hidden:
            S[:, :, columns].add_(hidden)
        return S


class _Attention(torch.autograd.Function):
    """Attention of one layer; S, P, dP and dS are as in Dao et al. 2022, alg. 4."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, step: _Step) -> Tensor:
        out = torch.zeros(q.shape, dtype=step.exact)
        lse = out.new_full((*q.shape[:2], 1), -torch.inf)  # (N, H, 1), in units of log 2
        ctx.seed = draw_seed() if step.dropout else 0  # backward draws the same masks again
        dropout = KeepMask(step.dropout, ctx.seed) if step.dropout else None
        for number, cut in enumerate(step.cuts):
            O, L = cut.queries.take(out), cut.queries.take(lse)  # noqa: E741 (the paper's symbols)
            of_rows = step.take(cut.queries, q), O.transpose(0, 1), L.transpose(0, 1)
            of_keys = step.take(cut.keys, k), step.take(cut.keys, v)
            for block in cut.blocks:
                rows = [x[:, block.rows] for x in of_rows]
                _forward(step, block.tiles, rows, of_keys, number > 0, dropout)
            cut.queries.put(O, out)
            cut.queries.put(L, lse)
        result = out.to(q.dtype)
        ctx.step = step
        ctx.save_for_backward(q, k, v, result, lse)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):
            return *_compute_gradients(ctx, grads[0]), None


def _forward(
    step: _Step,
    tiles: tuple[Tile, ...],
    of_rows: list[Tensor],
    of_keys: tuple[Tensor, Tensor],
    goes_on: bool,
    dropout: KeepMask | None,
) -> None:
    """Write output and logsumexp of a block; if it goes on, they are those of earlier ranges."""
    Q, O, L = of_rows  # noqa: E741
    K, V = of_keys
    lowest = torch.finfo(step.exact).min
    # The running maximum and the running sum.
    m, l = L, torch.ones_like(L)  # noqa: E741
    for tile in tiles:
        S = step.compute_scores(tile, Q, K[:, tile.keys])
        # A row may see none of these keys: then all of its S is -inf.
        m_new = S.amax(-1, keepdim=True).clamp_(min=lowest)
        if goes_on:
            m_new = torch.maximum(m_new, m)
        P = S.sub_(m_new).exp2_()
        total = P.sum(-1, keepdim=True)
        if dropout is not None:
            P.mul_(dropout.draw(torch.empty_like(P)).mul_(dropout.scale))
        part = step.multiply("rows", P, V[:, tile.keys])
        if goes_on:
            rescale = (m - m_new).exp2_()
            total.addcmul_(l, rescale)
            part.addcmul_(O, rescale)
        O.copy_(part)
        m, l, goes_on = m_new, total, True  # noqa: E741
    # The sum of a row that sees no key is 0; its output is 0, too.
    l.clamp_(min=torch.finfo(step.exact).tiny)
    O.div_(l)
    L.copy_(l.log2_().add_(m))


def _compute_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    step: _Step = ctx.step
    q, k, v, out, lse = ctx.saved_tensors
    dropout = KeepMask(step.dropout, ctx.seed) if step.dropout else None
    delta = (grad.to(step.exact) * out).sum(-1, keepdim=True)
    sums = [torch.zeros(x.shape, dtype=step.exact) for x in (q, k, v)]
    for cut in step.cuts:
        orders = cut.queries, cut.keys, cut.keys
        parts = [order.zeros(x) for order, x in zip(orders, sums, strict=True)]
        dQ, dK, dV = (x.transpose(0, 1) for x in parts)
        of_rows = [*(step.take(cut.queries, x) for x in (q, grad, lse, delta)), dQ]
        of_keys = [*(step.take(cut.keys, x) for x in (k, v)), dK, dV]
        for block in cut.blocks:
            rows = [x[:, block.rows] for x in of_rows]
            _backward(step, block.tiles, rows, of_keys, dropout)
        for order, part, whole in zip(orders, parts, sums, strict=True):
            order.add(part, whole)
    return tuple(d.to(x.dtype) for d, x in zip(sums, (q, k, v), strict=True))


def _backward(
    step: _Step,
    tiles: tuple[Tile, ...],
    of_rows: list[Tensor],
    of_keys: list[Tensor],
    dropout: KeepMask | None,
) -> None:
    Q, dO, L, D, dQ = of_rows
    for tile in tiles:
        K, V, dK, dV = (x[:, tile.keys] for x in of_keys)
        P = step.compute_scores(tile, Q, K).sub_(L).exp2_()
        dP = step.multiply("gradient", dO, V.mT)
        if dropout is not None:
            factors = dropout.draw(torch.empty_like(P)).mul_(dropout.scale)
            dV.add_(step.multiply("keys", (P * factors).mT, dO))
            dP.mul_(factors)
        else:
            dV.add_(step.multiply("keys", P.mT, dO))
        dS = dP.sub_(D).mul_(P)
        dK.add_(step.multiply("keys", dS.mT, Q, step.scale))
        dQ.add_(step.multiply("rows", dS, K, step.scale))
