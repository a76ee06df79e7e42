"""The cache of generation: keys, values and states of sequences that grow token by token.

The first step (the prompts, a flat pack) is computed as in training and recorded. In each later
step every sequence gets the same number of new tokens. The keys and values of each kind of
attention and each of its roles (self-attention, cross attention) are kept apart. A kind with its
own computation and a recurrent model have a state of fixed size instead.

B sequences, n new tokens per sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nlpkit.attention.key_values import KeyValues
from nlpkit.contracts.request import Request

CacheKey = tuple[str, str, str]  # kind, its settings, its role in the model


class Cache:
    """Number of tokens of each sequence (`lengths`), their keys and values, and states."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._key_values: dict[CacheKey, KeyValues] = {}
        self._states: dict[CacheKey, list[dict[str, Tensor]]] = {}
        self._ragged: dict[str, list[Tensor]] = {}

    def __len__(self) -> int:
        """Return B."""
        return len(self.lengths)

    def begin(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the number of cached tokens of each sequence, and add this step's `lengths`.

        Raises:
            ValueError: the B sequences do not all have the same number of new tokens.
        """
        past = tuple(self.lengths)
        if past and tuple(lengths) != (lengths[0],) * len(past):
            raise ValueError(
                f"a cache of {len(past)} sequences is given new tokens {tuple(lengths)}; "
                "each needs as many as the others"
            )
        before = past or (0,) * len(lengths)
        self.lengths = [old + new for old, new in zip(before, lengths, strict=True)]
        return past

    def record(
        self, request: Request, run: Callable[[Tensor, Tensor, Tensor], Tensor], key: CacheKey
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return `run`, the attention over the pack of prompts, which now also records k and v.

        Raises:
            ValueError: tokens see later tokens in this kind, so keys cannot be cached.
        """
        _check(request, grows=not request.is_cross)
        key_values = self._key_values[key] = KeyValues(request)
        return key_values.record(run)

    def extend(self, request: Request, key: CacheKey) -> Callable[..., Tensor]:
        """Return the attention of n new tokens of each sequence to its cached and new tokens."""
        _check(request, grows=False)  # `record` has checked the kind
        return self._key_values[key].extend(request)

    def states(self, request: Request, key: CacheKey) -> Iterator[dict[str, Tensor]]:
        """Return the states of a kind with its own computation, one per layer; empty at first."""
        _check(request, grows=True)
        first = request.layout.past is None
        if first:
            self._states[key] = []
        return _iterate(self._states[key], first)

    def state(self, name: str) -> dict[str, Tensor]:
        """Return a state that the model itself updates, tensors (B, …); empty at first."""
        return self._states.setdefault(("", "", name), [{}])[0]

    def ragged(self, name: str) -> list[Tensor]:
        """Return what the model keeps of each sequence in any length, B tensors; empty at first.

        Such are the states of its source. Sequences may share a tensor, so do not change them.
        """
        return self._ragged.setdefault(name, [])

    def select(self, indices: Sequence[int]) -> None:
        """Replace sequence i by sequence `indices[i]`; remove sequences without an index."""
        self.lengths = [self.lengths[index] for index in indices]
        for kept in self._ragged.values():
            kept[:] = [kept[index] for index in indices]
        for key_values in self._key_values.values():
            key_values.select(indices)
        for state in self._every_state():
            for name, tensor in state.items():
                rows = torch.tensor(indices, dtype=torch.int64, device=tensor.device)
                state[name] = tensor[rows]

    def append(self, other: Cache) -> None:
        """Append the sequences of `other`."""
        if not self.lengths:
            vars(self).update(vars(other))
            return
        if not other.lengths:
            return
        for key, key_values in self._key_values.items():
            key_values.append(other._key_values[key])
        for mine, theirs in zip(self._every_state(), other._every_state(), strict=True):
            for name, old in mine.items():
                new = theirs[name]
                if old.shape[1:] == new.shape[1:]:
                    mine[name] = torch.cat([old, new])
                else:  # sequences grow apart; behind the shorter ones are zeros
                    mine[name] = pad_sequence([*old, *new], batch_first=True)
        for name, kept in self._ragged.items():
            kept += other._ragged[name]
        self.lengths += other.lengths

    def _every_state(self) -> Iterator[dict[str, Tensor]]:
        return chain.from_iterable(self._states.values())


def _iterate(states: list[dict[str, Tensor]], first: bool) -> Iterator[dict[str, Tensor]]:
    if not first:
        yield from states
        return
    while True:
        states.append({})
        yield states[-1]


def _check(request: Request, grows: bool) -> None:
    if grows and request.kind.visibility(request.config) == "bidirectional":
        raise ValueError("tokens see later tokens in this attention: it cannot be cached")
    if request.training:
        raise ValueError("a cache is for generation; put the model in evaluation mode")
