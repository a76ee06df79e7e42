"""A readable FlashAttention (Dao et al. 2022, arXiv:2205.14135, alg. 1 and 4), slow, in float32.

For each tile of queries, forward iterates over the tiles of keys. It keeps only a running maximum
m, a running sum l and a partial output O, and rescales l and O when m grows. Backward recomputes
the probabilities of each tile from the logsumexp L = m + log l.

N packed tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.contracts.request import Request

_TILE = 16


def refuses(request: Request) -> str | None:
    """Return why the backend does not support this request, or None."""
    if request.is_cross:
        return "keys of other sequences"
    return "dropout on the probabilities" if request.dropout else None


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention tile by tile; differentiable once."""

    @torch.autocast(request.device.type, enabled=False)
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Tiled.apply(q, k, v, request.table, request)

    return attend


def _tiles(start: int, stop: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the indices start .. stop - 1, one tile at a time."""
    for first in range(start, stop, _TILE):
        yield torch.arange(first, min(first + _TILE, stop), device=device)


def _scores(
    request: Request, table: Tensor | None, Q: Tensor, K: Tensor, i: Tensor, j: Tensor
) -> Tensor | None:
    """Return the scores of queries `i` against keys `j`, (H, I, J), -inf where hidden.

    None if all of them are hidden: both passes skip such a tile.
    """
    queries, keys = i[:, None], j[None, :]
    visible = request.visible(queries, keys)
    if not visible.any():
        return None
    S = torch.einsum("ihd,jhd->hij", Q[i], K[j]) * request.scale
    if table is not None:
        S = S + table[request.bias_index(queries, keys)].permute(2, 0, 1)
    return S.masked_fill(~visible, -torch.inf)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, request: Request
    ) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        Q, K, V = q.to(exact), k.to(exact), v.to(exact)
        out, L = torch.zeros_like(Q), Q.new_zeros(Q.shape[:2])  # (N, H, D), (N, H)
        for start, stop in request.layout.spans:
            for i in _tiles(start, stop, q.device):
                m = Q.new_full((Q.shape[1], len(i)), torch.finfo(exact).min)  # (H, I)
                l = torch.zeros_like(m)  # noqa: E741 (the paper's symbol)
                O = Q.new_zeros(*m.shape, Q.shape[2])  # noqa: E741
                for j in _tiles(start, stop, q.device):
                    S = _scores(request, table, Q, K, i, j)
                    if S is None:
                        continue
                    m_new = torch.maximum(m, S.amax(-1))
                    P = torch.exp(S - m_new[..., None])
                    rescale = torch.exp(m - m_new)
                    l = l * rescale + P.sum(-1)  # noqa: E741
                    O = O * rescale[..., None] + torch.einsum(  # noqa: E741
                        "hij,jhd->hid", P, V[j]
                    )
                    m = m_new
                # A row that sees no key has l = 0: its output is zero, and so is exp(S - L).
                l = torch.where(l == 0, 1, l)  # noqa: E741
                out[i] = (O / l[..., None]).transpose(0, 1)
                L[i] = (m + torch.log(l)).T
        ctx.request = request
        ctx.save_for_backward(q, k, v, table, out, L)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        request: Request = ctx.request
        q, k, v, table, out, L = ctx.saved_tensors
        Q, K, V, dO = (x.to(out.dtype) for x in (q, k, v, grad))
        dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
        dT = None if table is None else torch.zeros(table.shape, dtype=out.dtype, device=q.device)
        delta = (dO * out).sum(-1)  # (N, H); the paper's D
        for start, stop in request.layout.spans:
            for j in _tiles(start, stop, q.device):
                for i in _tiles(start, stop, q.device):
                    S = _scores(request, table, Q, K, i, j)
                    if S is None:
                        continue
                    P = torch.exp(S - L[i].T[..., None])
                    dV[j] += torch.einsum("hij,ihd->jhd", P, dO[i])
                    dP = torch.einsum("ihd,jhd->hij", dO[i], V[j])
                    dS = P * (dP - delta[i].T[..., None])
                    dQ[i] += torch.einsum("hij,jhd->ihd", dS, K[j]) * request.scale
                    dK[j] += torch.einsum("hij,ihd->jhd", dS, Q[i]) * request.scale
                    if dT is not None:
                        rows = request.bias_index(i[:, None], j[None, :]).flatten()
                        dT.index_add_(0, rows, dS.flatten(1).T)
        grads = [x.to(q.dtype) for x in (dQ, dK, dV)]
        return *grads, None if dT is None else dT.to(table.dtype), None
