"""FlashAttention for CPUs: it saves no probabilities and computes few hidden pairs.

As in FlashAttention (Dao et al. 2022, arXiv:2205.14135, alg. 4), forward saves q, k, v, out and the
logsumexp of each row, and backward recomputes the probabilities. The tiles differ: `kernels/tiles`.
With dropout, backward draws the masks again. Bias and mask are gathered once per step for all
tiles. Backward sums the bias gradients of all layers in buffers of the same shape, and scatters the
sums once into the gradient of the table.

N packed tokens, M tokens with padding, H heads, D width of a head. A group has G documents of L
tokens; a tile has R of its rows and E of its keys.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.attention.kernels.keep_mask import KeepMask, draw_seed
from nlpkit.attention.kernels.tiles import Tile, Tiling
from nlpkit.contracts.request import Request

GROUPED = True
# All exponentials have base 2: on CPUs, torch's exp2 takes a third of the time of exp or softmax.
_LOG2E = math.log2(math.e)
_HALF = (torch.bfloat16, torch.float16)
# Measured: small tiles skip more hidden pairs; large tiles make matrix products more efficient.
_ROWS = 128
_ROWS_HALF = 256


def refuses(request: Request) -> str | None:
    """Return why the backend does not support this request, or None."""
    if request.device.type != "cpu":
        return "made for CPUs"
    if request.is_cross:
        return "keys of other sequences"
    return None


def suits(request: Request) -> bool:
    """Return whether no other backend is faster: neither `sparse` nor torch's own kernel.

    A rule, measured once (docs/lab/attention.md), so that a run repeats.
    """
    if request.kind.ranges is not None:
        return False
    if request.kernel is None or request.dropout:
        return True  # torch's kernel has neither masks nor dropout
    longest = request.layout.max_length
    if request.dtype.itemsize == 2:
        return longest <= 1024
    is_even = set(request.layout.lengths) == {longest}
    return request.kernel == "causal" and is_even and 384 <= longest <= 1024


def prepare(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention over the visible tiles; differentiable once."""
    shared = _Shared(request)
    collected = None if request.table is None else _Collect.apply(request.table, shared)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Attention.apply(q, k, v, collected, shared)

    return attend


class _Shared:
    """State that the layers share: the tiling, the bias of each tile and its gradient, buffers."""

    def __init__(self, request: Request):
        self.heads, self.scale, self.dropout = request.heads, request.scale, request.dropout
        self.exact = torch.promote_types(request.dtype, torch.float32)
        self.tiling = Tiling(request, _ROWS_HALF if request.dtype in _HALF else _ROWS)
        table = request.table
        columns = None if table is None else table.detach().T.to(self.exact) * _LOG2E  # (H, rows)
        self.tiles = [(tile, self._gather_bias(tile, columns)) for tile in self.tiling.tiles]
        self._bias_grads: dict[Tile, Tensor] = {}
        self._added: set[object] = set()  # layers whose gradients are in these sums
        self._buffers: dict[str, Tensor] = {}

    def _gather_bias(self, tile: Tile, columns: Tensor | None) -> Tensor | None:
        """Return bias and mask of a tile, in units of log 2, (H or 1, G * R * E), or None."""
        if tile.bias_rows is not None and columns is not None:
            bias = columns.gather(1, tile.bias_rows.expand(len(columns), -1))
        elif tile.hidden is not None:
            bias = torch.zeros(1, len(tile.hidden), dtype=self.exact)
        else:
            return None
        return bias if tile.hidden is None else bias.masked_fill_(tile.hidden, -torch.inf)

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        out = self.get_buffer(name, a.shape[0], a.shape[1], b.shape[2])
        return out.copy_(torch.bmm(a, b)) if a.dtype in _HALF else torch.bmm(a, b, out=out)

    def compute_scores(self, bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores of a tile, with bias and mask, in units of log 2, (H * G, R, E)."""
        scale = self.scale * _LOG2E
        if bias is None or len(bias) < self.heads:
            scores = self.multiply("scores", q, k.mT).mul_(scale)
            if bias is not None:
                scores.view(self.heads, -1).add_(bias)
            return scores
        bias = bias.view(len(q), q.shape[1], k.shape[1])
        if q.dtype in _HALF:
            scores = self.multiply("scores", q, k.mT)
            return torch.add(bias, scores, alpha=scale, out=scores)
        return torch.baddbmm(bias, q, k.mT, alpha=scale, out=self.get_buffer("scores", *bias.shape))

    def get_buffer(self, name: str, *shape: int) -> Tensor:
        """Return the buffer `name` with this shape; all tiles and layers share it."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=self.exact)
        return buffer[:size].view(shape)

    def start_backward(self, layer: object) -> None:
        """Begin anew where a layer comes again: the pass before did not reach the table."""
        if layer in self._added:
            self._added, self._bias_grads = set(), {}
        self._added.add(layer)

    def add_bias_grad(self, tile: Tile, grad: Tensor) -> None:
        """Add the gradient of a tile's bias, (H * G, R, E), to the sum over the layers."""
        flat = grad.view(self.heads, -1)
        if tile in self._bias_grads:
            self._bias_grads[tile].add_(flat)
        else:
            self._bias_grads[tile] = flat.clone()

    def sum_table_grad(self, table: Tensor, layers: int) -> Tensor:
        """Return the gradient of the table, (rows, H), from so many layers; empty the buffers."""
        if layers != len(self._added):
            raise RuntimeError("a learned bias and its layers need one backward pass for both")
        grad = torch.zeros(table.shape[1], table.shape[0], dtype=self.exact)
        for tile, part in self._bias_grads.items():
            assert tile.bias_rows is not None
            grad.scatter_add_(1, tile.bias_rows.expand(len(grad), -1), part)
        self._added, self._bias_grads = set(), {}
        return grad.T.to(table.dtype)


class _Collect(torch.autograd.Function):
    """Returns a scalar that connects the layers to the table in autograd's graph.

    Autograd calls backward after every layer has added its gradient to the buffers. The gradients
    do not pass through autograd, because autograd would allocate a buffer for each layer. What
    passes is a 1 from each layer, so that their number is known.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, shared: _Shared) -> Tensor:
        ctx.shared, ctx.table = shared, table.detach()
        return table.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.shared.sum_table_grad(ctx.table, int(grads[0])), None


class _Attention(torch.autograd.Function):
    """Attention of one layer; S, P, dP and dS are as in Dao et al. 2022, alg. 4."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, collected: Tensor | None, shared: _Shared
    ) -> Tensor:
        tiling = shared.tiling
        Q, K, V = tiling.pack(q), tiling.pack_keys(k), tiling.pack_keys(v)  # (M * H, D)
        ctx.layer = object()  # one that is no other layer's
        ctx.seed = draw_seed() if shared.dropout else 0
        mask = KeepMask(shared.dropout, ctx.seed) if shared.dropout else None
        out = torch.empty_like(Q)
        lse = torch.empty(len(Q), 1, dtype=shared.exact)
        for tile, bias in shared.tiles:
            S = shared.compute_scores(bias, tile.take_rows(Q), tile.take_keys(K))
            largest = S.amax(-1, keepdim=True)
            P = S.sub_(largest).exp2_()
            total = P.sum(-1, keepdim=True)
            torch.add(largest, total.log2(), out=tile.take_rows(lse))
            if mask is not None:
                P.mul_(mask.draw(shared.get_buffer("kept", *P.shape)))
                total /= mask.scale
            torch.div(torch.bmm(P.to(V.dtype), tile.take_keys(V)), total, out=tile.take_rows(out))
        out.index_fill_(0, tiling.empty_rows, 0)
        ctx.shared = shared
        out = tiling.unpack(out)  # (N, H, D); the next layer saves this tensor anyway
        # Keys that serve several heads are packed again, because they are larger then.
        ctx.save_for_backward(Q, *((k, v) if k.shape[1] < shared.heads else (K, V)), lse, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):
            return _backward(ctx, grads[0])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    shared: _Shared = ctx.shared
    Q, K, V, lse, out = ctx.saved_tensors  # (M * H, D) three times, (M * H, 1), (N, H, D)
    tiling = shared.tiling
    times = shared.heads // K.shape[1] if K.ndim == 3 else 1  # heads of a key
    if times > 1:
        K, V = tiling.pack_keys(K), tiling.pack_keys(V)
    dO = tiling.pack(grad)
    delta = tiling.pack((grad.to(shared.exact) * out).sum(-1, keepdim=True))  # (M * H, 1)
    dO.index_fill_(0, tiling.empty_rows, 0)
    delta.index_fill_(0, tiling.empty_rows, 0)
    dQ = torch.empty_like(Q)
    dK, dV = torch.zeros(2, *Q.shape, dtype=shared.exact)
    mask = KeepMask(shared.dropout, ctx.seed) if shared.dropout else None
    if ctx.needs_input_grad[3]:
        shared.start_backward(ctx.layer)
    for tile, bias in shared.tiles:
        tile_Q, tile_dO, tile_K = tile.take_rows(Q), tile.take_rows(dO), tile.take_keys(K)
        P = shared.compute_scores(bias, tile_Q, tile_K).sub_(tile.take_rows(lse)).exp2_()
        dP = shared.multiply("gradient", tile_dO, tile.take_keys(V).mT)
        if mask is not None:
            kept = mask.draw(shared.get_buffer("kept", *P.shape)).mul_(mask.scale)
            dP.mul_(kept)
        dS = dP.sub_(tile.take_rows(delta)).mul_(P)
        if ctx.needs_input_grad[3]:
            shared.add_bias_grad(tile, dS)
        if mask is not None:
            P.mul_(kept)
        P, dS = P.to(Q.dtype), dS.to(Q.dtype)
        tile.take_keys(dV).add_(torch.bmm(P.mT, tile_dO))
        tile.take_keys(dK).add_(torch.bmm(dS.mT, tile_Q), alpha=shared.scale)
        torch.mul(torch.bmm(dS, tile_K), shared.scale, out=tile.take_rows(dQ))
    collected_grad = grad.new_ones(()) if ctx.needs_input_grad[3] else None
    dq, dk, dv = (tiling.unpack(x.to(grad.dtype)) for x in (dQ, dK, dV))
    if times > 1:
        dk, dv = (x.unflatten(1, (-1, times)).sum(2) for x in (dk, dv))
    return dq, dk, dv, collected_grad, None
