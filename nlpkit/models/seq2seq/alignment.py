"""Attention of a decoder's states to the encoder's: scores, local windows, weights.

Bahdanau et al. 2014 (arXiv:1409.0473, sec. 3), Luong et al. 2015 (arXiv:1508.04025, sec. 3). With
the papers' symbols: h_t is a state of the decoder, h_s one of the encoder, D the window's size.
Differs from Luong: positions count from 0, and the centre of a local-m window that lies behind the
source is the source's last token, so that there is always something to see.

Sequences are a rectangle here, for attention alone: what is beyond their ends has no weight.
B sequences, T targets, S source tokens of the longest, M of all, E encoder width, C decoder width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Memory:
    """The states of the sources, a row for each sequence of targets."""

    values: Tensor  # (B, S, E)
    keys: Tensor  # (B, S, C), the states as the score compares them
    lengths: Tensor  # (B,)

    @classmethod
    def of(cls, values: Sequence[Tensor], keys: Sequence[Tensor]) -> "Memory":
        """Return the memory of sources with these states, (S, E) and (S, C) each."""
        lengths = torch.tensor([len(each) for each in values], device=values[0].device)
        return cls(pad_sequence(list(values), True), pad_sequence(list(keys), True), lengths)

    def rows(self, index: Tensor | slice) -> "Memory":
        """Return the memory of some of the sequences."""
        return Memory(self.values[index], self.keys[index], self.lengths[index])


class Alignment(nn.Module):
    """Weights of the source's tokens for each state of the decoder."""

    MATRICES = {"key.weight": 1, "query.weight": 1, "place.weight": 1}  # noqa: RUF012

    def __init__(
        self, score: str, window: str, window_size: int, source_size: int, hidden_size: int
    ):
        super().__init__()
        self.score, self.window, self.window_size = score, window, window_size
        # W_a h_s of general and additive; the additive query has a layer of its own, with the bias.
        self.key = nn.Linear(source_size, hidden_size, bias=False) if score != "dot" else None
        self.query = nn.Linear(hidden_size, hidden_size) if score == "additive" else None
        self.weight = nn.Linear(hidden_size, 1, bias=False) if score == "additive" else None
        self.place = self.place_weight = None
        if window == "local_p":
            self.place = nn.Linear(hidden_size, hidden_size, bias=False)  # W_p
            self.place_weight = nn.Linear(hidden_size, 1, bias=False)  # v_p

    def keys(self, values: Tensor) -> Tensor:
        """Return states of the encoder (M, E) as the score compares them, (M, C)."""
        return values if self.key is None else self.key(values)

    def forward(self, states: Tensor, positions: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return contexts (B, T, E) and weights (B, T, S) of states (B, T, C).

        Args:
            positions: (B, T), the position of each state in its target, from 0.
        """
        place = torch.arange(memory.keys.shape[1], device=states.device)
        seen = (place < memory.lengths[:, None])[:, None]  # (B, 1, S)
        distance = None
        if self.window != "global":
            distance = place - self._centre(states, positions, memory)[..., None]  # (B, T, S)
            seen = seen & (distance.abs() <= self.window_size)
        scores = self._scores(states, memory).float().masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)
        if self.window == "local_p" and distance is not None:
            # A Gaussian around the centre with sigma = D / 2 (Luong et al. 2015, eq. 10).
            weights = weights * torch.exp(-2 * (distance / self.window_size) ** 2)
        return weights.to(memory.values.dtype) @ memory.values, weights

    def _scores(self, states: Tensor, memory: Memory) -> Tensor:
        """Return (B, T, S)."""
        if self.query is None or self.weight is None:
            return states @ memory.keys.transpose(1, 2)
        both = self.query(states)[:, :, None] + memory.keys[:, None]  # (B, T, S, C)
        return self.weight(torch.tanh(both)).squeeze(-1)

    def _centre(self, states: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """Return p_t, (B, T): the centre of each local window."""
        last = memory.lengths[:, None] - 1
        if self.place is None or self.place_weight is None:
            return torch.minimum(positions, last)
        share = torch.sigmoid(self.place_weight(torch.tanh(self.place(states)))).squeeze(-1)
        return last * share.float()
