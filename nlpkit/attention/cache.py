"""What generation keeps of sequences that grow, so that a new token costs one token's work.

The first step (the prompts, a flat pack) is computed as in training, and what later steps need is
kept on the way. In each later step every sequence gets the same number of new tokens. A model with
several kinds of attention, or several roles of it (to itself, to an encoder), has a stream of keys
and values for each; a kind that computes itself, or a recurrent model, has a state of fixed size.

B sequences, T tokens of the longest, n new tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from nlpkit.attention.contract import Request
from nlpkit.attention.key_values import KeyValues

Stream = tuple[str, str, str]  # kind, its settings, its role in the model


class Cache:
    """`lengths` (B) tokens of each sequence, the streams, and the states of each layer."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._streams: dict[Stream, KeyValues] = {}
        self._states: dict[Stream, list[dict[str, Tensor]]] = {}

    def __len__(self) -> int:
        """Return B."""
        return len(self.lengths)

    def begin(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return what is kept of each sequence, in tokens, and add those of this step.

        Raises:
            ValueError: not the same number of new tokens for each of the B sequences.
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
        self, request: Request, run: Callable[[Tensor, Tensor, Tensor], Tensor], stream: Stream
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return `run`, the attention over the pack of prompts, that also keeps what it is given.

        Raises:
            ValueError: the kind lets tokens see later ones, so that nothing can be kept.
        """
        _check(request, grows=not request.is_cross)
        kept = self._streams[stream] = KeyValues(request)
        return kept.record(run)

    def extend(self, request: Request, stream: Stream) -> Callable[..., Tensor]:
        """Return the attention of n new tokens of each sequence to what is kept of it."""
        _check(request, grows=False)  # as at the first step
        return self._streams[stream].extend(request)

    def states(self, request: Request, stream: Stream) -> Iterator[dict[str, Tensor]]:
        """Return the states of a kind that computes itself, layer by layer; empty ones at first."""
        _check(request, grows=True)
        first = request.layout.past is None
        if first:
            self._states[stream] = []
        return _layers(self._states[stream], first)

    def state(self, name: str) -> dict[str, Tensor]:
        """Return the state that a model keeps for itself, tensors (B, …); empty at first."""
        layers = self._states.setdefault(("", "", name), [])
        if not layers:
            layers.append({})
        return layers[0]

    def select(self, indices: Sequence[int]) -> None:
        """Make sequence i what sequence `indices[i]` was; those not named leave."""
        self.lengths = [self.lengths[index] for index in indices]
        for kept in self._streams.values():
            kept.select(indices)
        for state in self._every_state():
            for name, tensor in state.items():
                state[name] = tensor[torch.tensor(list(indices), device=tensor.device)]

    def append(self, other: Cache) -> None:
        """Add the sequences of `other` behind those there are."""
        if not self.lengths:
            vars(self).update(vars(other))
            return
        if not other.lengths:
            return
        for stream, kept in self._streams.items():
            kept.append(other._streams[stream])
        for mine, theirs in zip(self._every_state(), other._every_state(), strict=True):
            for name in mine:
                mine[name] = torch.cat([mine[name], theirs[name]])
        self.lengths += other.lengths

    def _every_state(self) -> Iterator[dict[str, Tensor]]:
        for layers in self._states.values():
            yield from layers


def _layers(states: list[dict[str, Tensor]], first: bool) -> Iterator[dict[str, Tensor]]:
    """Yield the state of one layer after the other; at the first step new ones."""
    if not first:
        yield from states
        return
    while True:
        states.append({})
        yield states[-1]


def _check(request: Request, grows: bool) -> None:
    if grows and request.kind.VISIBILITY == "bidirectional":
        raise ValueError("in this attention tokens see later ones: nothing of it can be kept")
    if request.training:
        raise ValueError("a cache is for generation; put the model in evaluation mode")
