"""Attention to windows of tokens, over packs: kernels of the same width and stride make them.

N tokens of the pack, W windows, s tokens of a window, B sequences, H heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention.forms import growing
from nlpkit.contracts.kind import Learned, State
from nlpkit.contracts.request import Layout, Request

_TILE = 512  # queries that see at most the windows until their last one


@dataclass(frozen=True)
class Windows:
    """The windows of a pack, the same for all layers; causal ones are whole."""

    tokens: Tensor  # (W, s) index of each token, N where a short window has none
    counts: tuple[int, ...]  # windows of each sequence
    stride: int
    causal: bool

    @classmethod
    def of(cls, layout: Layout, stride: int, causal: bool) -> Windows:
        """Return the windows of sequences, cut from the first token of each."""
        counts = tuple(n // stride if causal else -(-n // stride) for n in layout.lengths)
        device = layout.device
        sizes = torch.tensor(counts, device=device)
        first = layout.cu_seqlens[:-1].long() - stride * (sizes.cumsum(0) - sizes)
        number = torch.arange(sum(counts), device=device)
        starts = torch.repeat_interleave(first, sizes, output_size=len(number)) + stride * number
        tokens = starts[:, None] + torch.arange(stride, device=device)
        ends = torch.repeat_interleave(layout.cu_seqlens[1:].long(), sizes, output_size=len(number))
        tokens = tokens.masked_fill(tokens >= ends[:, None], layout.total)
        return cls(tokens, counts, stride, causal)

    def shorten(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Return (W, H, D) from (N, H, D) and the kernel (H, s, D, D)."""
        return _convolve(F.pad(x, (0, 0, 0, 0, 0, 1))[self.tokens], kernel)


def _convolve(windows: Tensor, kernel: Tensor) -> Tensor:
    """Return (W, H, D) from windows (W, s, H, D)."""
    cut = windows.permute(2, 0, 1, 3).flatten(2)  # (H, W, s D)
    return (cut @ kernel.flatten(1, 2)).transpose(0, 1)


def attend(request: Request, q: Tensor, k: Tensor, v: Tensor, learned: Learned) -> Tensor:
    """Return (N, H, D) for a pack."""
    windows: Windows = request.prepared
    keys = windows.shorten(k, learned["key_kernel"]).split(windows.counts)
    values = windows.shorten(v, learned["value_kernel"]).split(windows.counts)
    parts, queries = [], q.split(request.layout.lengths)
    for one, own_keys, own_values in zip(queries, keys, values, strict=True):
        if windows.causal:
            own_keys = torch.cat([learned["start_key"][None], own_keys])
            own_values = torch.cat([learned["start_value"][None], own_values])
        parts += _attend_tiles(request, windows, one, own_keys, own_values)
    return torch.cat(parts)


def _attend_tiles(
    request: Request, windows: Windows, q: Tensor, keys: Tensor, values: Tensor
) -> list[Tensor]:
    """Return the attention of a sequence (n, H, D), by parts of its queries."""
    if not windows.causal:
        return [_attend_tile(request, q, keys, values, None)]
    parts = []
    for start in range(0, len(q), _TILE):
        tile = q[start : start + _TILE]
        until = torch.arange(start + 1, start + len(tile) + 1, device=q.device)
        finished = 1 + until // windows.stride  # with the start
        last = 1 + (start + len(tile)) // windows.stride
        mask = torch.arange(last, device=q.device) < finished[:, None]
        parts.append(_attend_tile(request, tile, keys[:last], values[:last], mask))
    return parts


def _attend_tile(request: Request, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention of queries (n, H, D) to keys (w, H, D)."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=request.dropout, scale=request.scale
    )
    return out[0].transpose(0, 1)


def remember(request: Request, k: Tensor, v: Tensor, learned: Learned, state: State) -> None:
    """Fill the state with the finished windows of the prompts, and with the tokens left over."""
    windows, layout = request.prepared, request.layout
    count, sizes = len(layout.lengths), torch.tensor(windows.counts)
    owner = torch.repeat_interleave(torch.arange(count), sizes).to(k.device)
    number = torch.cat([torch.arange(size) for size in windows.counts]).to(k.device)
    inside = layout.positions % windows.stride
    # The last token of each place in a window is the one that is kept: earlier ones are behind.
    left = layout.positions >= layout.token_lengths - layout.token_lengths % windows.stride
    for name, x in (("keys", k), ("values", v)):
        made = windows.shorten(x, learned[f"{name[:-1]}_kernel"])
        held = growing.reserve(state, name, x, count, max(windows.counts) + 1)
        held[owner, number] = made
        rest = state[f"new_{name}"] = x.new_zeros(count, windows.stride, *x.shape[1:])
        rest[layout.document_ids[left], inside[left]] = x[left]


def extend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, learned: Learned, state: State
) -> Tensor:
    """Return (N, H, D) for new tokens, as many for each sequence, and update the state."""
    layout, stride = request.layout, request.config.stride
    assert layout.past is not None
    count, device = len(layout.lengths), q.device
    rows = torch.arange(count, device=device)
    positions = layout.positions.view(count, -1)
    outs = []
    for step in range(positions.shape[1]):
        now = positions[:, step]
        finished = (now + 1) // stride
        seen = []
        for name, x in (("keys", k), ("values", v)):
            rest = state[f"new_{name}"]
            rest[rows, now % stride] = x.unflatten(0, (count, -1))[:, step]
            held = growing.reserve(state, name, x, count, layout.longest // stride + 1)
            # Until it is finished, nobody sees what is written there.
            held[rows, now // stride] = _convolve(rest, learned[f"{name[:-1]}_kernel"])
            start = learned[f"start_{name[:-1]}"].expand(count, 1, -1, -1)
            seen.append(torch.cat([start, held], 1).transpose(1, 2))
        mask = torch.arange(seen[0].shape[2], device=device) < 1 + finished[:, None]
        own = q.unflatten(0, (count, -1))[:, step, :, None]  # (B, H, 1, D)
        out = F.scaled_dot_product_attention(
            own, seen[0], seen[1], attn_mask=mask[:, None, None], scale=request.scale
        )
        outs.append(out[:, :, 0])
    return torch.stack(outs, 1).flatten(0, 1)
