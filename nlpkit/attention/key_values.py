"""The cached keys and values of a kind of attention in one role, for all its layers.

The mask of new tokens is the kind's own mask, computed over the rectangle (B, T). This is correct
only if no token sees later tokens, except among the tokens of the first step. In self-attention
the keys grow with each step; in cross attention they are always those of the first step.

B sequences, T tokens of the longest, H heads of queries, G of keys, D width of a head, n new tokens
per sequence. Keys and values are (rows, G, capacity, D), so that a step reads contiguous memory for
each head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from nlpkit.contracts.kind import Tokens
from nlpkit.contracts.request import Request

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
_CAPACITY_STEP = 32  # tokens per sequence


class KeyValues:
    """Keys and values of each layer, and the kind's fields; the first B rows are in use.

    `lengths` is the number of keys of each sequence. Entries beyond it are masked: attention
    multiplies them by zero, so they must be finite.
    """

    def __init__(self, request: Request):
        """Reserve memory for the keys of the first step, and store their fields."""
        layout = request.keys
        self.is_cross = request.is_cross
        self.lengths = list(layout.lengths)
        self._rows, self._capacity = len(self.lengths), _round_up(layout.max_length)
        self._first_index = layout.document_ids, layout.positions
        self._layers: list[tuple[Tensor, Tensor]] = []
        # On a CPU, torch's attention of one query takes four times as long in bfloat16.
        on_cpu = request.device.type == "cpu"
        self._dtype = torch.promote_types(request.dtype, torch.float32) if on_cpu else request.dtype
        self._fields: dict[str, Tensor] = {}  # (rows, capacity)
        for name, field in request.key_fields.items():
            self._fields[name] = field.new_zeros(self._rows, self._capacity)
            self._fields[name][self._first_index] = field

    def record(self, run: Attention) -> Attention:
        """Return `run`, the attention of the first step, which now also stores k and v."""

        def scatter(packed: Tensor) -> Tensor:
            heads, width = packed.shape[1:]
            shape = self._rows, heads, self._capacity, width
            cached = packed.new_zeros(shape, dtype=self._dtype)
            cached.transpose(1, 2)[self._first_index] = packed.detach().to(self._dtype)
            return cached

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._layers.append((scatter(k), scatter(v)))
            return run(q, k, v)

        return attend

    def extend(self, request: Request) -> Callable[..., Tensor]:
        """Return the attention of n new tokens of each sequence to its cached and new tokens.

        Call the result once per layer, in the order of the first step. Cross attention ignores its
        k and v.
        """
        count, new = len(self.lengths), request.layout.lengths[0]
        added = 0 if self.is_cross else new
        equal = len(set(self.lengths)) == 1
        longest = max(self.lengths) + added
        self._reserve(count, longest)
        device = request.device
        first = torch.arange(count, device=device)[:, None] * self._capacity
        end = torch.tensor(self.lengths, device=device)[:, None] + added  # (B, 1)
        # (B, n); (B, 0) in cross attention
        at = first + end + torch.arange(-added, 0, device=device)
        if added:
            for name, field in self._fields.items():
                field.view(-1)[at] = request.fields[name].view(count, new)
            if "length" in self._fields:
                self._fields["length"][:count] = end
        self.lengths = [length + added for length in self.lengths]
        plain = request.kernel == ("full" if self.is_cross else "causal")
        # The kernel without a mask is the fastest.
        mask = None if plain and equal and new == 1 else self._make_mask(request, first, end)
        layers = iter(self._layers)
        heads, groups, width = request.heads, request.key_heads, request.head_dim
        # The row of each new key and head in the flattened cache: (B, n, G), flattened.
        first_head = torch.arange(count * groups, device=device).view(count, 1, groups)
        rows = (first_head * self._capacity + (at - first)[..., None]).view(-1)

        def attend(q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            keys, values = next(layers)
            if added:
                assert k is not None
                assert v is not None
                keys.view(-1, width).index_copy_(0, rows, k.reshape(-1, width).to(self._dtype))
                values.view(-1, width).index_copy_(0, rows, v.reshape(-1, width).to(self._dtype))
            out = F.scaled_dot_product_attention(
                q.reshape(count, new, heads, width).transpose(1, 2).to(self._dtype),
                keys[:count, :, :longest],
                values[:count, :, :longest],
                attn_mask=mask,
                scale=request.scale,
                enable_gqa=groups != heads,
            )
            return out.transpose(1, 2).reshape(count * new, heads, width).to(q.dtype)

        return attend

    def select(self, indices: Sequence[int]) -> None:
        """Replace sequence i by sequence `indices[i]`; remove sequences without an index.

        Only the rows that change are copied.
        """
        self.lengths = [self.lengths[index] for index in indices]
        moved = [row for row, index in enumerate(indices) if row != index]
        if not moved:
            return
        longest = max(self.lengths)
        self._reserve(len(indices), longest)
        device = self._layers[0][0].device
        to = torch.tensor(moved, device=device)
        source = torch.tensor([indices[row] for row in moved], device=device)
        for tensor in self._tensors():
            live = _tokens_first(tensor)[:longest]
            live[:, to] = live[:, source]

    def append(self, other: KeyValues) -> None:
        """Append the sequences of `other`."""
        count, longest = len(self.lengths), max(other.lengths)
        self._reserve(count + len(other.lengths), max(longest, *self.lengths))
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            new = _tokens_first(theirs)[:longest, : len(other.lengths)]
            _tokens_first(mine)[:longest, count : count + len(other.lengths)] = new
        self.lengths += other.lengths

    def _tensors(self) -> list[Tensor]:
        return [*chain.from_iterable(self._layers), *self._fields.values()]

    def _make_mask(self, request: Request, first: Tensor, end: Tensor) -> Tensor:
        """Return the bias with -inf where hidden, (B, H, n, T), or the bool mask, (B, 1, n, T)."""
        position = torch.arange(max(self.lengths), device=request.device)
        new = torch.arange(request.layout.total, device=request.device)
        # The fields of the queries are those of this step; the fields of the keys are cached.
        q = Tokens(request.fields, new.view(len(self.lengths), 1, -1, 1))  # (B, 1, n, 1)
        flat = {name: field.view(-1) for name, field in self._fields.items()}
        k = Tokens(flat, (first + position)[:, None, None, :])  # (B, 1, 1, T)
        exists = (position < end)[:, None, None, :]
        assert request.kind.mask is not None
        visible = request.kind.mask(request.config, q, k) & exists
        if request.table is None:
            return visible
        index = request.kind.bias_index(request.config, request.buffers, q, k)
        bias = F.embedding(index.squeeze(1), request.table).permute(0, 3, 1, 2)
        return bias.to(self._dtype).masked_fill(~visible, -torch.inf)

    def _reserve(self, rows: int, tokens: int) -> None:
        """Reserve memory for `rows` sequences of `tokens` tokens, at least double if too small."""
        if rows <= self._rows and tokens <= self._capacity:
            return
        old_rows, old_capacity = self._rows, self._capacity
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
        if tokens > self._capacity:
            self._capacity = _round_up(max(tokens, 2 * self._capacity))

        def grow(old: Tensor) -> Tensor:
            shape = list(old.shape)
            shape[0], shape[2 if old.ndim == 4 else 1] = self._rows, self._capacity
            new = old.new_zeros(shape)
            _tokens_first(new)[:old_capacity, :old_rows] = _tokens_first(old)
            return new

        self._layers = [(grow(keys), grow(values)) for keys, values in self._layers]
        self._fields = {name: grow(field) for name, field in self._fields.items()}


def _tokens_first(tensor: Tensor) -> Tensor:
    """Return a view (capacity, rows, …) of a field or of the keys or values of a layer."""
    return tensor.permute(2, 0, 1, 3) if tensor.ndim == 4 else tensor.T


def _round_up(tokens: int) -> int:
    return -(-tokens // _CAPACITY_STEP) * _CAPACITY_STEP
