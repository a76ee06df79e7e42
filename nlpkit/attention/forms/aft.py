"""The attention-free transformer over packs: a mean with the weights exp(k_j + w_ij) by channel.

Sums over keys are matrix products, as exp(k_j + w_ij) is exp(k_j) exp(w_ij). They are kept in
float64, whose range is that of exponents up to 700: so no token changes what those to its left
get. A document is cut into chunks. A chunk of queries sees the keys of near chunks with w, and
those beyond, where w is 0, as the sums of whole chunks. Near chunks are computed again in the
backward pass, so memory grows with the tokens alone.

N tokens of a pack, n of a document, c of a chunk, C channels, B sequences of T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nlpkit.contracts.request import Layout

# Tokens of a chunk where w is 0 beyond a window, at least; and where it is not.
_CHUNK, _LARGE_CHUNK = 64, 256


class Biases(NamedTuple):
    """The matrices (positions, rank) whose product is w, and the distance from which w is 0."""

    queries: Tensor
    keys: Tensor
    window: int | None  # None: w is 0 nowhere

    def between(self, i: Tensor, j: Tensor) -> Tensor:
        """Return w (c, n) of the positions of queries (c,) and keys (n,)."""
        w = F.embedding(i, self.queries) @ F.embedding(j, self.keys).mT
        return w if self.window is None else w * ((i[:, None] - j).abs() < self.window)


def weigh(k: Tensor, v: Tensor) -> Tensor:
    """Return exp(k) v beside exp(k), (…, 2 C)."""
    weights = _exact(k).exp()
    return torch.cat([weights * v, weights], -1)


def _exact(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.double()  # mps has no float64


def divide(sums: Tensor) -> Tensor:
    """Return (…, C) from sums of `weigh`."""
    values, weights = sums.chunk(2, -1)
    return values / weights


def compute_means(
    k: Tensor, v: Tensor, lengths: Sequence[int], causal: bool, biases: Biases | None
) -> Tensor:
    """Return the means (N, C) of the values of a pack; without `biases` w is 0."""
    found = []
    for keys, values in zip(k.split(lengths), v.split(lengths), strict=True):
        if biases is not None:
            found += _compute_chunks(keys, values, causal, biases)
        elif causal:
            found.append(divide(weigh(keys, values).cumsum(0)))
        else:
            found.append(divide(weigh(keys, values).sum(0)).expand_as(keys))
    return torch.cat(found)


def _compute_chunks(k: Tensor, v: Tensor, causal: bool, biases: Biases) -> list[Tensor]:
    size = _LARGE_CHUNK if biases.window is None else max(_CHUNK, biases.window)
    chunks = [x.split(size) for x in (k, v, torch.arange(len(k), device=k.device))]
    count = len(chunks[0])
    reach = count if biases.window is None else 1  # chunks to each side that are near
    left = right = _exact(k.new_zeros(count + 1, 1))
    if reach < count:
        whole = torch.stack([weigh(*each).sum(0) for each in zip(*chunks[:2], strict=True)])
        left = F.pad(whole.cumsum(0), (0, 0, 1, 0))
        right = F.pad(whole.flip(0).cumsum(0).flip(0), (0, 0, 0, 1))
    found = []
    for number in range(count):
        first, last = max(number - reach, 0), min(number + reach + 1, count)
        beyond = left[first] if causal else left[first] + right[last]
        near = [x[first : number + 1 if causal else last] for x in chunks]
        given = near, chunks[2][number], causal, biases, beyond
        if torch.is_grad_enabled():
            found.append(
                checkpoint(_compute_chunk, *given, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            found.append(_compute_chunk(*given))
    return found


def _compute_chunk(
    near: Sequence[tuple[Tensor, ...]], i: Tensor, causal: bool, biases: Biases, beyond: Tensor
) -> Tensor:
    """Return the means (c, C) of queries at positions `i`, from sums `beyond` and near chunks.

    `near` are the keys, the values and the positions of chunks; causal, the last is the queries'.
    """
    k, v, j = (torch.cat(chunks) for chunks in near)
    w, sums = biases.between(i, j), beyond
    if causal:  # A maximum of these keys would be one of later tokens.
        before = len(j) - len(i)
        own = weigh(k[before:], v[before:])
        sums = sums + _exact(w[:, before:]).exp().tril() @ own
        k, v, w = k[:before], v[:before], w[:, :before]
    if len(k):
        largest, largest_w = k.detach().amax(0), w.detach().amax(1, keepdim=True)
        weights = (k - largest).exp()
        product = (w - largest_w).exp() @ torch.cat([weights * v, weights], 1)
        sums = sums + product * _exact(largest + largest_w).exp().repeat(1, 2)
    return divide(sums)


def continue_means(k: Tensor, v: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means (N, C) of new tokens with w = 0, and the sums (B, 2 C) behind them."""
    new = weigh(k, v).unflatten(0, (len(sums), -1))
    sums = sums[:, None] + new.cumsum(1)
    return divide(sums).flatten(0, 1), sums[:, -1]


def compute_new_means(keys: Tensor, values: Tensor, layout: Layout, biases: Biases) -> Tensor:
    """Return the means (N, C) of new tokens, from the keys and values (B, T, C) of sequences."""
    place = torch.arange(keys.shape[1], device=keys.device)
    w = biases.between(layout.positions, place.clamp(max=len(biases.keys) - 1))
    w = w.masked_fill(place > layout.positions[:, None], -torch.inf)
    owner = layout.document_ids
    return ((keys[owner] + w[..., None]).softmax(1) * values[owner]).sum(1)
