"""Attention within the buckets of random hashes, for the kind `lsh` (Kitaev et al. 2020).

N tokens of the pack, H heads, D width of a head, R rounds of hashing, C tokens of a chunk, B blocks
of C tokens in the order of the buckets, W keys that the queries of a block are compared with.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nlpkit.attention.forms import sides
from nlpkit.contracts.request import Request

_SELF = -1e5  # added to the score of a token with itself, as the authors' code does
_TINY = 1e-6  # of a mean of squares, as there


def draw(request: Request) -> Tensor:
    """Return the random matrices (H, D, R, buckets / 2), the same in all steps."""
    config = request.config
    shape = (request.heads, request.head_dim, config.rounds, config.buckets // 2)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(config.seed))
    return drawn.to(request.device)


@torch.no_grad()
def hash_tokens(request: Request, x: Tensor) -> Tensor:
    """Return the bucket of each vector (N, H, D) in each head and round, (H, R, N)."""
    rotated = torch.einsum("nhd,hdrb->hrnb", x, request.prepared.to(x.dtype))
    return torch.cat([rotated, -rotated], dim=-1).argmax(-1)


@torch.no_grad()
def _sort(group: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort tokens by `group` (H, R, N), their sequence and bucket, each in its own order.

    Returns:
        The order, and of each token, not sorted, the number of its chunk, which no two groups
        share, and that of the chunk before it, or -1; (H, R, N) each.
    """
    sorted_group, order = group.sort(dim=-1, stable=True)
    place = torch.arange(group.shape[-1], device=group.device).expand_as(group)
    begins = torch.ones_like(group, dtype=torch.bool)
    begins[..., 1:] = sorted_group[..., 1:] != sorted_group[..., :-1]
    first = (place * begins).cummax(-1).values  # the place where the group begins
    rank = place - first
    number = (begins | (rank % chunk == 0)).cumsum(-1)
    before = (number - 1).masked_fill(rank < chunk, -1)
    back = order.argsort(-1)
    return order, number.gather(-1, back).int(), before.gather(-1, back).int()


def attend(request: Request, x: Tensor, v: Tensor) -> Tensor:
    """Return (N, H, D) from shared vectors and values (N, H, D) of a pack."""
    buckets = hash_tokens(request, x)
    group = request.layout.document_ids * request.config.buckets + buckets
    order, own, before = _sort(group, request.config.chunk)
    x, v = x.transpose(0, 1), v.transpose(0, 1)
    found = [
        # Scores are computed again in the backward pass, so one round is in memory at a time.
        checkpoint(_attend_round, request, x, v, each, own, before, number, use_reentrant=False)
        for number, each in enumerate(order.unbind(1))
    ]
    outs, norms = (torch.stack(each) for each in zip(*found, strict=True))
    return (outs * norms.softmax(0)[..., None]).sum(0).transpose(0, 1)


def _attend_round(
    request: Request, x: Tensor, v: Tensor, order: Tensor, own: Tensor, before: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    """Return what the tokens get in a round, (H, N, D), and its logsumexp, (H, N).

    `order` (H, N) is that of the round; `own` and `before` (H, R, N) are chunks of all rounds.
    """
    size = min(request.config.chunk, x.shape[1])
    causal = sides.is_causal(request.config)
    # A chunk begins anywhere in a block: what is seen reaches two blocks back, and one ahead.
    shifts = (2, 1, 0) if causal else (2, 1, 0, -1)
    rows = order[..., None].expand_as(x)
    query = _cut(x.gather(1, rows) * request.scale, size)
    key = _near(_cut(_normalize(x).gather(1, rows), size), shifts)
    scores = query @ key.mT  # (H, B, C, W)
    seen = torch.zeros_like(scores, dtype=torch.bool)
    count = torch.zeros_like(scores, dtype=torch.uint8)  # rounds in which the query sees the key
    for each in range(own.shape[1]):
        chunks = _cut(own[:, each].gather(1, order), size, fill=-2)
        previous = _cut(before[:, each].gather(1, order), size, fill=-3)
        of_key = _near(chunks, shifts, fill=-4)[:, :, None]
        match = (chunks[..., None] == of_key) | (previous[..., None] == of_key)
        seen = match if each == number else seen
        count += match
    place = _cut(order, size)[..., None]
    of_key = _near(place[..., 0], shifts)[:, :, None]
    if causal:
        seen = seen & (of_key <= place)
    scores = scores - count.clamp(min=1).to(scores.dtype).log() + _SELF * (place == of_key)
    scores = scores.masked_fill(~seen, -torch.inf)
    norm = scores.logsumexp(-1)
    weights = F.dropout((scores - norm[..., None]).exp(), request.dropout)
    value = _near(_cut(v.gather(1, rows), size), shifts)
    back = order.argsort(-1)
    out = (weights @ value).flatten(1, 2).gather(1, back[..., None].expand_as(v))
    return out, norm.flatten(1, 2).gather(1, back)


def _normalize(x: Tensor) -> Tensor:
    """Return the keys of shared vectors: of length sqrt(D), which the scale takes back."""
    return x * (x.square().mean(-1, keepdim=True) + _TINY).rsqrt()


def _cut(x: Tensor, size: int, fill: int = 0) -> Tensor:
    """Return the blocks (H, B, C, …) of tokens (H, N, …); `fill` completes the last one."""
    missing = -x.shape[1] % size
    rest = x.new_full((len(x), missing, *x.shape[2:]), fill)
    return torch.cat([x, rest], dim=1).unflatten(1, (-1, size))


def _near(blocks: Tensor, shifts: tuple[int, ...], fill: int = 0) -> Tensor:
    """Return for each block (H, B, C, …) those that are `shifts` blocks before it, (H, B, W, …)."""
    none = torch.full_like(blocks[:, :1], fill)
    padded = torch.cat([none, none, blocks, none], dim=1)
    count = blocks.shape[1]
    return torch.cat([padded[:, 2 - shift : 2 - shift + count] for shift in shifts], dim=2)


def continue_texts(request: Request, x: Tensor, vectors: Tensor, values: Tensor) -> Tensor:
    """Return (N, H, D) of new tokens; `vectors` and `values` (B, T, H, D) are of whole texts."""
    outs = []
    past = request.layout.past or ()
    for number, new in enumerate(x.split(request.layout.lengths)):
        length = past[number] + len(new)
        text, held = vectors[number, :length].to(x.dtype), values[number, :length].to(x.dtype)
        _, own, before = _sort(hash_tokens(request, text), request.config.chunk)
        of_query, previous = (each[..., -len(new) :, None] for each in (own, before))
        seen = ((own[:, :, None] == of_query) | (own[:, :, None] == previous)).any(1)
        place = torch.arange(length, device=x.device)
        distance = place - place[-len(new) :, None]
        keys = _normalize(text).permute(1, 2, 0)
        scores = new.transpose(0, 1) * request.scale @ keys + _SELF * (distance == 0)
        weights = scores.masked_fill(~(seen & (distance <= 0)), -torch.inf).softmax(-1)
        outs.append((weights @ held.transpose(0, 1)).transpose(0, 1))
    return torch.cat(outs)
