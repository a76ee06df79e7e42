"""Attention whose weights are products of features, at a cost that is linear in the tokens.

out_i = q_i S_i / (q_i Z_i), S_i = sum of k_j v_j^T and Z_i = sum of k_j over the tokens j that i
sees, where q and k are features (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 5, 6 and 9-12).

The causal form cuts the pack, not its documents, into chunks. Inside a chunk it is a product with a
mask; from the chunks before comes the state (S, Z), for the document that goes on from one chunk
into the next. So nothing is padded but the last chunk, and documents may have any lengths. Chunks
are computed in groups that fit into a processor's cache, and the backward pass computes features
and weights again, so that neither is kept.

N tokens of the pack, C tokens of a chunk, g chunks of a group, H heads, F features and D values of
a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlpkit.attention.forms.chunks import Chunks
from nlpkit.attention.forms.sides import is_causal
from nlpkit.contracts.kind import State
from nlpkit.contracts.request import Request

# Features (…, F) of queries or keys (…, D), whose positions are (…, 1) or broadcast to it.
Features = Callable[[Tensor, Tensor], Tensor]


class _Causal(torch.autograd.Function):
    """Attention of a pack in chunks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, features: Features, least: float
    ) -> Tensor:
        out, kept = torch.empty_like(v), []
        S: Tensor | None = None
        Z: Tensor | None = None
        for group in chunks.groups(q.shape[1] * q.shape[2]):
            places = chunks.positions[group]
            fq, fk = (features(chunks.cut(x, group), places) for x in (q, k))
            values = chunks.cut(v, group)
            weights = (fq @ fk.mT).mul_(chunks.mask[group])
            going = chunks.keep_early(fk, group)
            adds_S, adds_Z = going.mT @ values, going.sum(2).unsqueeze(3)
            S_all, S = chunks.scan_states(adds_S, S, group)
            Z_all, Z = chunks.scan_states(adds_Z, Z, group)
            later = chunks.keep_late(fq, group)
            sums = _add_product(weights @ values, later, S_all)
            norms = _add_product(weights.sum(3, keepdim=True), later, Z_all)
            sums /= norms.clamp_(min=least)
            chunks.put(sums, group, out)
            kept += [norms, S_all, Z_all]
        ctx.save_for_backward(q, k, v, out, *kept)
        ctx.chunks, ctx.features, ctx.least = chunks, features, least
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *kept = ctx.saved_tensors
        chunks: Chunks = ctx.chunks
        of_q, of_k, of_v = (torch.empty_like(x) for x in (q, k, v))
        of_S: Tensor | None = None
        of_Z: Tensor | None = None
        groups = chunks.groups(q.shape[1] * q.shape[2])
        for number in range(len(groups) - 1, -1, -1):
            group = groups[number]
            norms, S, Z = kept[3 * number : 3 * number + 3]
            with torch.enable_grad():
                own_q, own_k = (chunks.cut(x, group).requires_grad_() for x in (q, k))
                places = chunks.positions[group]
                features_q, features_k = (ctx.features(x, places) for x in (own_q, own_k))
            fq, fk, values = features_q.detach(), features_k.detach(), chunks.cut(v, group)
            mask = chunks.mask[group]
            # out = sums / norms; a norm at its least is a constant.
            of_sums = chunks.cut(given, group) / norms
            rows = chunks.tokens(group)
            both = (x[rows].to(mask.dtype) for x in (given, out))
            products = torch.linalg.vecdot(*both).unsqueeze(2)
            of_norms = chunks.cut(products, group, whole=False).div_(norms).neg_()
            of_norms *= norms > ctx.least
            weights = (fq @ fk.mT).mul_(mask)
            of_weights = (of_sums @ values.mT).add_(of_norms).mul_(mask)
            later, going = chunks.keep_late(fq, group), chunks.keep_early(fk, group)
            adds_S, adds_Z = later.mT @ of_sums, later.mT @ of_norms
            S_back, of_S = chunks.scan_states(adds_S, of_S, group, backwards=True)
            Z_back, of_Z = chunks.scan_states(adds_Z, of_Z, group, backwards=True)
            of_fq = _add_product(of_weights @ fk, chunks.keep_late(of_sums, group), S.mT)
            of_fq = _add_product(of_fq, chunks.keep_late(of_norms, group), Z.mT)
            of_fk = _add_product(of_weights.mT @ fq, chunks.keep_early(values, group), S_back.mT)
            of_fk += chunks.keep_early(Z_back.mT, group)
            of_values = _add_product(weights.mT @ of_sums, going, S_back)
            (found_q,) = torch.autograd.grad(features_q, own_q, of_fq)
            (found_k,) = torch.autograd.grad(features_k, own_k, of_fk)
            for found, into in ((found_q, of_q), (found_k, of_k), (of_values, of_v)):
                chunks.put(found, group, into)
        return of_q, of_k, of_v, None, None, None


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return `to` + a b, in place of `to`; all are (g, H, …)."""
    shape = to.shape
    return to.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1)).view(shape)


def elu_plus_one(x: Tensor, positions: Tensor) -> Tensor:
    """Return elu(x) + 1, the features of Katharopoulos et al. 2020 (eq. 7)."""
    return F.elu(x) + 1


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of products and sums: float32, or float64 if the inputs are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def attend_both_ways(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], least: float
) -> Tensor:
    """Return (N, H, D) from features (N, H, F) and values; a token sees its whole sequence."""
    states = zip(q.split(lengths), *sum_states(k, v, lengths), strict=True)
    return torch.cat(
        [
            torch.einsum("nhf,hfd->nhd", one, S)
            / torch.einsum("nhf,hf->nh", one, Z).clamp(min=least)[..., None]
            for one, S, Z in states
        ]
    )


def sum_states(k: Tensor, v: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return S (B, H, F, D) and Z (B, H, F) behind the last token of each sequence."""
    parts = [
        (torch.einsum("nhf,nhd->hfd", keys, values), keys.sum(0))
        for keys, values in zip(k.split(lengths), v.split(lengths), strict=True)
    ]
    S, Z = zip(*parts, strict=True)
    return torch.stack(S), torch.stack(Z)


def extend(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, Z: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out (B, T, H, D) of T new tokens of each sequence, and S and Z behind them.

    q, k and v are (B, T, H, F or D); S and Z are those before the tokens.
    """
    weights = torch.einsum("bihf,bjhf->bhij", q, k).tril()
    sums = torch.einsum("bhij,bjhd->bihd", weights, v) + torch.einsum("bihf,bhfd->bihd", q, S)
    norms = weights.sum(-1).mT + torch.einsum("bihf,bhf->bih", q, Z)
    S = S + torch.einsum("bihf,bihd->bhfd", k, v)
    return sums / norms.clamp(min=least)[..., None], S, Z + k.sum(1)


def make_chunks(request: Request) -> Chunks | None:
    """Return the chunks of a pack; None for both ways, and for new tokens of cached sequences."""
    if request.layout.past is not None or not is_causal(request.config):
        return None
    return Chunks.of(request.layout, request.fields["position"], sum_dtype(request.dtype))


def attend(
    request: Request,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None,
    features: Features,
    least: float,
) -> Tensor:
    """Return (N, H, D) by the form that the request needs, and keep the state.

    Products and sums are in float32, or in float64 if q is. `request.prepared` are the chunks of
    the causal form, or None. `least` is the smallest sum of weights.
    """
    lengths, chunks = request.layout.lengths, request.prepared
    with torch.autocast(q.device.type, enabled=False):
        if chunks is not None and state is None:
            causal: Tensor = _Causal.apply(q, k, v, chunks, features, least)
            return causal
        places = request.fields["position"][:, None, None]
        fq, fk = (features(x.to(sum_dtype(x.dtype)), places) for x in (q, k))
        values = v.to(fq.dtype)
        if state:
            fq, fk, values = (x.unflatten(0, (len(lengths), -1)) for x in (fq, fk, values))
            out, state["S"], state["Z"] = extend(fq, fk, values, state["S"], state["Z"], least)
            return out.flatten(0, 1).to(q.dtype)
        if state is not None:
            state["S"], state["Z"] = sum_states(fk, values, lengths)
            out = _Causal.apply(q, k, v, chunks, features, least)
        else:
            out = attend_both_ways(fq, fk, values, lengths, least)
        return out.to(q.dtype)
