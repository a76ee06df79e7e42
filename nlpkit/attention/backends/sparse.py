"""Attention of kinds that are made of few ranges of positions: hidden pairs are not computed.

Each piece of the kind is FlashAttention over its own tiles (Dao et al. 2022, arXiv:2205.14135, alg.
1 and 4; see `tiled.py` and `_cuts.py`). The pieces are joined by their logsumexps. Backward needs
only the logsumexp of all pieces, so that each tile is computed by itself. Half precision is
computed in float32: products of ever new shapes are slow otherwise on CPUs.

N queries, K keys, M queries of a piece, H heads, D width of a head; a tile has R rows and E keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.attention.backends._cuts import Cut, cuts
from nlpkit.attention.contract import Request
from nlpkit.attention.pieces import PiecewiseKind

# All exponentials have base 2: on CPUs, torch's exp2 takes a third of the time of exp.
_LOG2E = math.log2(math.e)


def refuses(request: Request) -> str | None:
    """Return why the backend does not support this request, or None."""
    if not isinstance(request.kind, PiecewiseKind):
        return "its mask is not cut into pieces"
    if request.table is not None:
        return "learned bias"
    return None if request.device.type == "cpu" else "made for CPUs"


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention over the visible tiles; differentiable once."""
    pieces = cuts(request)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # The seed of the dropout, so that backward draws the same again.
        seed = int(torch.randint(2**62, ())) if request.dropout else 0
        return _Attention.apply(q, k, v, pieces, request, seed)

    return attend


def _taken(x: Tensor, index: Tensor, scale: float = 1.0) -> Tensor:
    """Return the tokens `index` of x (N, H, D) in float32 or float64, (H, M, D), scaled."""
    taken = x.transpose(0, 1).index_select(1, index)
    taken = taken.to(torch.promote_types(x.dtype, torch.float32))
    return taken.mul_(scale) if scale != 1.0 else taken


class _Dropout:
    """The factors of the probabilities, tile by tile: 0, or 1 / (1 - rate)."""

    def __init__(self, rate: float, seed: int):
        self.rate, self._rng = rate, torch.Generator().manual_seed(seed)

    def factors(self, like: Tensor) -> Tensor:
        """Return the next tile's factors."""
        kept = torch.empty_like(like).bernoulli_(1 - self.rate, generator=self._rng)
        return kept.div_(1 - self.rate)


class _Attention(torch.autograd.Function):
    """Attention of one layer; S, P, dP and dS are as in Dao et al. 2022, alg. 4."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pieces: list[Cut], request: Request, seed: int
    ) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        shape = request.heads, request.layout.total
        out = torch.zeros(*shape, request.head_dim, dtype=exact)
        lse = torch.full((*shape, 1), -torch.inf, dtype=exact)  # in units of log 2
        dropout = _Dropout(request.dropout, seed)
        for number, cut in enumerate(pieces):
            part, part_lse = _piece(cut, q, k, v, request.scale, dropout)
            if number:
                # Two softmaxes over disjoint keys, each weighted by its sum of exponentials.
                before = lse.index_select(1, cut.queries)
                joined = torch.logaddexp2(before, part_lse)
                part.mul_((part_lse - joined).exp2_())
                part.addcmul_(out.index_select(1, cut.queries), (before - joined).exp2_())
                part_lse = joined
            out.index_copy_(1, cut.queries, part)
            lse.index_copy_(1, cut.queries, part_lse)
        result = out.transpose(0, 1).to(q.dtype).contiguous()
        ctx.pieces, ctx.request, ctx.seed = pieces, request, seed
        ctx.save_for_backward(q, k, v, result, lse)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):
            return *_backward(ctx, grads[0]), None, None, None


def _piece(
    cut: Cut, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: _Dropout
) -> tuple[Tensor, Tensor]:
    """Return the attention of a piece alone, (H, M, D), and its logsumexp, (H, M, 1)."""
    Q = _taken(q, cut.queries, scale * _LOG2E)
    K, V = _taken(k, cut.keys), _taken(v, cut.keys)
    O = torch.empty_like(Q)  # noqa: E741 (the paper's symbol)
    # The running maximum and sum of each row; a row may see none of its first tile's keys.
    m, l = torch.empty(2, *Q.shape[:2], 1, dtype=Q.dtype)  # noqa: E741
    lowest = torch.finfo(Q.dtype).min
    for tile in cut.tiles:
        rows = tile.rows
        S = torch.bmm(Q[:, rows], K[:, tile.keys].mT)
        if tile.hidden is not None:
            S.masked_fill_(tile.hidden, -torch.inf)
        m_new = S.amax(-1, keepdim=True).clamp_(min=lowest)
        if not tile.is_first:
            m_new = torch.maximum(m_new, m[:, rows])
        P = S.sub_(m_new).exp2_()
        total = P.sum(-1, keepdim=True)
        if dropout.rate:
            P.mul_(dropout.factors(P))
        partial = torch.bmm(P, V[:, tile.keys])
        if not tile.is_first:
            rescale = (m[:, rows] - m_new).exp2_()
            total.addcmul_(l[:, rows], rescale)
            partial.addcmul_(O[:, rows], rescale)
        O[:, rows], m[:, rows], l[:, rows] = partial, m_new, total
    return O.div_(l), m.add_(l.log2_())


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v."""
    request: Request = ctx.request
    q, k, v, out, lse = ctx.saved_tensors
    exact = lse.dtype
    dropout = _Dropout(request.dropout, ctx.seed)
    delta = (grad.to(exact) * out).sum(-1, keepdim=True)  # (N, H, 1)
    dq, dk, dv = (x.new_zeros(x.transpose(0, 1).shape, dtype=exact) for x in (q, k, v))
    for cut in ctx.pieces:
        Q = _taken(q, cut.queries, request.scale * _LOG2E)
        K, V, dO = _taken(k, cut.keys), _taken(v, cut.keys), _taken(grad, cut.queries)
        L, D = lse.index_select(1, cut.queries), _taken(delta, cut.queries)
        dQ, dK, dV = torch.empty_like(Q), torch.zeros_like(K), torch.zeros_like(V)
        for tile in cut.tiles:
            rows, keys = tile.rows, tile.keys
            S = torch.bmm(Q[:, rows], K[:, keys].mT)
            if tile.hidden is not None:
                S.masked_fill_(tile.hidden, -torch.inf)
            P = S.sub_(L[:, rows]).exp2_()
            dP = torch.bmm(dO[:, rows], V[:, keys].mT)
            if dropout.rate:
                factors = dropout.factors(P)
                dV[:, keys] += torch.bmm((P * factors).mT, dO[:, rows])
                dP.mul_(factors)
            else:
                dV[:, keys] += torch.bmm(P.mT, dO[:, rows])
            dS = dP.sub_(D[:, rows]).mul_(P)
            dK[:, keys] += torch.bmm(dS.mT, Q[:, rows])
            of_rows = torch.bmm(dS, K[:, keys])
            dQ[:, rows] = of_rows if tile.is_first else of_rows.add_(dQ[:, rows])
        dq.index_add_(1, cut.queries, dQ, alpha=request.scale)
        dk.index_add_(1, cut.keys, dK, alpha=1 / _LOG2E)  # Q has both factors
        dv.index_add_(1, cut.keys, dV)
    grads = zip((dq, dk, dv), (q, k, v), strict=True)
    return tuple(d.transpose(0, 1).to(x.dtype) for d, x in grads)
