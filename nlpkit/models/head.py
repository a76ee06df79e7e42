"""A linear layer on a state: what a task adds to a model, whatever its family."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = "head.weight"  # its name in a state dict
BIAS = "head.bias"  # where the family's classifier in transformers has one
# What transformers' sequence classifiers call it, unless the family says otherwise.
_USUAL_NAMES = {HEAD: "score.weight"}
INIT_STD = 0.02


class Head(nn.Module):
    """Dropout, then scores (M, O) of states (M, C).

    GPT-1's has no bias (Radford et al. 2018, eq. 3), BERT's has one.
    """

    def __init__(self, hidden_size: int, outputs: int, dropout: float, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(Tensor(outputs, hidden_size), std=INIT_STD))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(F.dropout(states, self.dropout, self.training), self.weight, self.bias)


def classifier_names(module: object) -> Mapping[str, str]:
    """Return the layer's parameters, and what transformers calls them in this family.

    `module` is the family's `model.py`; `CLASSIFIER_NAMES` in it says what differs.
    """
    names: Mapping[str, str] = vars(module).get("CLASSIFIER_NAMES", _USUAL_NAMES)
    return names


def taken_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the layer's own state dict, taken out of a model's; empty if there is none."""
    found = {name: state.pop(name) for name in (HEAD, BIAS) if name in state}
    return {name.rpartition(".")[2]: tensor for name, tensor in found.items()}


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence of a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]
