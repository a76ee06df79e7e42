"""A linear layer on a state: what a task adds to a model, whatever its family."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = "head.weight"  # its name in a state dict
INIT_STD = 0.02


class Head(nn.Module):
    """Dropout, then scores (M, O) of states (M, C); no bias (Radford et al. 2018, eq. 3)."""

    def __init__(self, hidden_size: int, outputs: int, dropout: float):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(Tensor(outputs, hidden_size), std=INIT_STD))
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(F.dropout(states, self.dropout, self.training), self.weight)


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence of a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]
