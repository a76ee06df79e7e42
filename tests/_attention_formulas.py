"""The formulas of the kinds of attention with their own computation, for one sequence, to be read.

n tokens, H heads, D width of a head; `tensors` are the learned tensors of a layer.
"""

import math

import torch
import torch.nn.functional as F

from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.forms import sides
from nlpkit.attention.kinds import cosformer, disentangled


def reference(choice: AttentionChoice, q, k, v, tensors):
    """Return (n, H, D) from queries, keys and values (n, H, D)."""
    return {
        "aft": _aft,
        "linear": _linear,
        "lsh": _lsh,
        "cosformer": _cosformer,
        "memory_compressed": _memory_compressed,
        "relative_keys": _relative_keys,
        "disentangled": _disentangled,
    }[choice.kind](choice.config, q, k, v, tensors)


def _aft(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the weights (n, n, H, D) of all channels."""
    place = torch.arange(len(q), device=q.device)
    w = q.new_zeros(len(q), len(q))
    if tensors:
        w = tensors["query_bias"][: len(q)] @ tensors["key_bias"][: len(q)].mT
    if config.near is not None:
        w = w * ((place[:, None] - place).abs() < config.near)
    exponents = k[None] + w[:, :, None, None]
    if sides.is_causal(config):
        later = place > place[:, None]
        exponents = exponents.masked_fill(later[:, :, None, None], -torch.inf)
    return q.sigmoid() * (exponents.softmax(1) * v).sum(1)


def _linear(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the matrix of all weights."""
    weights = torch.einsum("ihd,jhd->hij", F.elu(q) + 1, F.elu(k) + 1)
    if sides.is_causal(config):
        weights = weights.tril()
    return torch.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdim=True), v)


def _cosformer(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the matrix of all weights."""
    place = torch.arange(len(q), device=q.device, dtype=q.dtype)
    cosines = torch.cos(math.pi / 2 * (place[:, None] - place) / config.max_length)
    weights = torch.einsum("ihd,jhd->hij", q.relu(), k.relu()) * cosines
    if sides.is_causal(config):
        weights = weights.tril()
    norms = weights.sum(-1, keepdim=True).clamp(min=cosformer._LEAST)
    return torch.einsum("hij,jhd->ihd", weights / norms, v)


def _memory_compressed(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the matrix of all scores."""
    length, causal = len(q), sides.is_causal(config)
    whole = length - length % config.stride
    kept = whole if causal else length
    keys, values = (
        _shorten(x[:kept], tensors[name], config.stride)
        for x, name in ((k, "key_kernel"), (v, "value_kernel"))
    )
    if causal:
        keys = torch.cat([tensors["start_key"][None], keys])
        values = torch.cat([tensors["start_value"][None], values])
    scores = torch.einsum("ihd,jhd->hij", q, keys) * q.shape[2] ** -0.5
    if causal:
        end = config.stride * torch.arange(len(keys), device=q.device) - 1  # of the start: -1
        scores = scores.masked_fill(
            end > torch.arange(length, device=q.device)[:, None], -torch.inf
        )
    return torch.einsum("hij,jhd->ihd", scores.softmax(2), values)


def _shorten(x, kernel, stride):
    """Return (w, H, D), the convolution of a sequence (n, H, D), whose last window may be short."""
    missing = -len(x) % stride
    cut = F.pad(x, (0, 0, 0, 0, 0, missing)).unflatten(0, (-1, stride))
    return torch.einsum("wshd,hsde->whe", cut, kernel)


def _relative_keys(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the vectors (n, n, D) of all pairs (Shaw, eq. 3-5)."""
    place = torch.arange(len(q), device=q.device)
    farthest, distance = config.max_distance, place - place[:, None]
    left = torch.maximum(torch.minimum(distance, torch.tensor(farthest)), torch.tensor(-farthest))
    if sides.is_causal(config):
        left = left.where(distance <= 0, 0)
    row = left + farthest
    keys = k[None] + tensors["key_table"][row][:, :, None]  # (n, n, H, D)
    scores = torch.einsum("ihd,ijhd->hij", q, keys) / q.shape[2] ** 0.5
    if sides.is_causal(config):
        scores = scores.masked_fill(distance > 0, -torch.inf)
    values = v[None].expand(len(q), -1, -1, -1)
    if config.values:
        values = values + tensors["value_table"][row][:, :, None]
    return torch.einsum("hij,ijhd->ihd", scores.softmax(2), values)


def _disentangled(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the vectors (n, n, H, D) of all pairs (He, eq. 4)."""
    place = torch.arange(len(q), device=q.device)
    distance = place[:, None] - place
    row = disentangled.row_of(config, distance)
    terms = [torch.einsum("ihd,jhd->hij", q, k)]
    if "position_keys" in tensors:
        terms.append(torch.einsum("ihd,ijhd->hij", q, tensors["position_keys"][row]))
    if "position_queries" in tensors:
        terms.append(torch.einsum("jhd,ijhd->hij", k, tensors["position_queries"][row]))
    scores = sum(terms) / (len(terms) * q.shape[2]) ** 0.5
    if sides.is_causal(config):
        scores = scores.masked_fill(distance < 0, -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(2), v)


def _lsh(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the set of tokens that each one sees (Kitaev, eq. 3-6).

    The random numbers are those of the kind; chunks are counted in each bucket.
    """
    n, heads, width = q.shape
    shape = (heads, width, config.rounds, config.buckets // 2)
    random = torch.randn(shape, generator=torch.Generator().manual_seed(config.seed)).to(q.dtype)
    shared = (q + k) / 2**0.5
    seen = torch.zeros(heads, n, n, dtype=torch.bool)
    for head in range(heads):
        for number in range(config.rounds):
            rotated = shared[:, head] @ random[head, :, number]
            buckets = torch.cat([rotated, -rotated], dim=1).argmax(1)
            for bucket in buckets.unique():
                members = (buckets == bucket).nonzero()[:, 0]
                chunk = torch.arange(len(members)) // config.chunk
                near = (chunk[:, None] == chunk) | (chunk[:, None] == chunk + 1)
                seen[head, members[:, None], members] |= near
    if sides.is_causal(config):
        seen = seen.tril()
    alone = torch.eye(n, dtype=torch.bool)
    seen = torch.where((seen & ~alone).any(2, keepdim=True), seen & ~alone, seen)
    keys = shared / (shared.square().mean(2, keepdim=True) + 1e-6).sqrt()
    scores = torch.einsum("ihd,jhd->hij", shared, keys) / width**0.5
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(~seen, -torch.inf).softmax(2), v)
