"""Keys and values of one stream of attention: of all its layers, of sequences that grow, or not.

New tokens see their own sequence by the kind's own index arithmetic over the rectangle (B, T): no
kind and no family knows about it. Right only where tokens never see later ones, but for those of
the first step among themselves. In cross attention the keys are those of the first step for ever.

B sequences, T tokens of the longest, H heads, D width of a head, n new tokens a sequence.
Keys and values of a head lie together, (rows, H, capacity, D): what a step reads is in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.attention.contract import Request, Tokens

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
_LEAST_CAPACITY = 32  # tokens a sequence


class KeyValues:
    """Keys and values of each layer, and the kind's fields; of their rows the first B are in use.

    `lengths` are the keys of each sequence. What lies beyond them is finite, as it is multiplied by
    zero.
    """

    def __init__(self, request: Request):
        """Make room for the keys of the first step, and keep their fields."""
        layout = request.keys
        self.is_cross = request.is_cross
        self.lengths = list(layout.lengths)
        self._rows, self._capacity = len(self.lengths), _capacity(layout.max_length)
        self._places = layout.document_ids, layout.positions
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._fields: dict[str, Tensor] = {}  # (rows, capacity)
        for name, field in request.key_fields.items():
            self._fields[name] = field.new_zeros(self._rows, self._capacity)
            self._fields[name][self._places] = field

    def record(self, run: Attention) -> Attention:
        """Return `run`, the attention of the first step, that also keeps what it is given."""

        def spread(packed: Tensor) -> Tensor:
            heads, width = packed.shape[1:]
            kept = packed.new_zeros(self._rows, heads, self._capacity, width)
            kept.transpose(1, 2)[self._places] = packed.detach()
            return kept

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._layers.append((spread(k), spread(v)))
            return run(q, k, v)

        return attend

    def extend(self, request: Request) -> Callable[..., Tensor]:
        """Return the attention of n new tokens of each sequence to all that is kept of it.

        Called once a layer, in the order of the first step. In cross attention k and v are not
        looked at.
        """
        count, new = len(self.lengths), request.layout.lengths[0]
        added = 0 if self.is_cross else new
        equal = len(set(self.lengths)) == 1
        longest = max(self.lengths) + added
        self._reserve(count, longest)
        device = request.device
        first = torch.arange(count, device=device)[:, None] * self._capacity
        end = torch.tensor(self.lengths, device=device)[:, None] + added  # (B, 1)
        at = first + end + torch.arange(-added, 0, device=device)  # (B, n), none in cross attention
        if added:
            for name, kept in self._fields.items():
                kept.view(-1)[at] = request.fields[name].view(count, new)
            if "length" in self._fields:
                self._fields["length"][:count] = end
        self.lengths = [length + added for length in self.lengths]
        plain = request.kernel == ("full" if self.is_cross else "causal")
        # Where nothing is hidden, no mask: the fastest kernel.
        mask = None if plain and equal and new == 1 else self._mask(request, first, end)
        layers = iter(self._layers)
        heads, width = request.heads, request.head_dim
        # Of each new token, head by head, where it goes: (B, n, H), flat.
        first_head = torch.arange(count * heads, device=device).view(count, 1, heads)
        rows = (first_head * self._capacity + (at - first)[..., None]).view(-1)

        def attend(q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            keys, values = next(layers)
            if added:
                assert k is not None
                assert v is not None
                keys.view(-1, width).index_copy_(0, rows, k.reshape(-1, width))
                values.view(-1, width).index_copy_(0, rows, v.reshape(-1, width))
            out = F.scaled_dot_product_attention(
                q.reshape(count, new, heads, width).transpose(1, 2),
                keys[:count, :, :longest],
                values[:count, :, :longest],
                attn_mask=mask,
                scale=request.scale,
            )
            return out.transpose(1, 2).reshape(count * new, heads, width)

        return attend

    def select(self, indices: Sequence[int]) -> None:
        """Make sequence i what sequence `indices[i]` was; those not named leave.

        Only rows that change are copied, so naming most in their own place is cheap.
        """
        self.lengths = [self.lengths[index] for index in indices]
        moved = [place for place, index in enumerate(indices) if place != index]
        if not moved:
            return
        longest = max(self.lengths)
        self._reserve(len(indices), longest)
        device = self._layers[0][0].device
        to = torch.tensor(moved, device=device)
        source = torch.tensor([indices[place] for place in moved], device=device)
        for tensor in self._tensors():
            live = _tokens_first(tensor)[:longest]
            live[:, to] = live[:, source]

    def append(self, other: KeyValues) -> None:
        """Add the sequences of `other` behind those there are."""
        count, longest = len(self.lengths), max(other.lengths)
        self._reserve(count + len(other.lengths), max(longest, *self.lengths))
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            new = _tokens_first(theirs)[:longest, : len(other.lengths)]
            _tokens_first(mine)[:longest, count : count + len(other.lengths)] = new
        self.lengths += other.lengths

    def _tensors(self) -> list[Tensor]:
        return [*chain.from_iterable(self._layers), *self._fields.values()]

    def _mask(self, request: Request, first: Tensor, end: Tensor) -> Tensor:
        """Return what is added to the scores, (B, H, n, T), or who sees whom, (B, 1, n, T)."""
        place = torch.arange(max(self.lengths), device=request.device)
        new = torch.arange(request.layout.total, device=request.device)
        # Fields of the queries are those of this step, fields of the keys what is kept.
        q = Tokens(request.fields, new.view(len(self.lengths), 1, -1, 1))  # (B, 1, n, 1)
        flat = {name: field.view(-1) for name, field in self._fields.items()}
        k = Tokens(flat, (first + place)[:, None, None, :])  # (B, 1, 1, T)
        there = (place < end)[:, None, None, :]
        visible = request.kind.mask(request.config, q, k) & there
        if request.table is None:
            return visible
        index = request.kind.bias_index(request.config, request.buffers, q, k)
        bias = F.embedding(index.squeeze(1), request.table).permute(0, 3, 1, 2)
        return bias.to(request.dtype).masked_fill(~visible, -torch.inf)

    def _reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` sequences of `tokens` tokens; what is too small is doubled."""
        if rows <= self._rows and tokens <= self._capacity:
            return
        kept, length = self._rows, self._capacity
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
        if tokens > self._capacity:
            self._capacity = _capacity(max(tokens, 2 * self._capacity))

        def grown(old: Tensor) -> Tensor:
            shape = list(old.shape)
            shape[0], shape[2 if old.ndim == 4 else 1] = self._rows, self._capacity
            new = old.new_zeros(shape)
            _tokens_first(new)[:length, :kept] = _tokens_first(old)
            return new

        self._layers = [(grown(keys), grown(values)) for keys, values in self._layers]
        self._fields = {name: grown(field) for name, field in self._fields.items()}


def _tokens_first(tensor: Tensor) -> Tensor:
    """Return a view (capacity, rows, …) of a field or of a layer's keys or values."""
    return tensor.permute(2, 0, 1, 3) if tensor.ndim == 4 else tensor.T


def _capacity(tokens: int) -> int:
    return -(-tokens // _LEAST_CAPACITY) * _LEAST_CAPACITY
