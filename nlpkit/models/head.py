"""The task head: a linear layer on the state of each sequence, the same for all families.

M states, C model width, O outputs, S sequences.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PREFIX = "head."  # of the head's parameters in a state dict
HEAD = "head.weight"
BIAS = "head.bias"  # only if the family's classifier in transformers has a bias
# Names in transformers' sequence classifiers, unless the family has `CLASSIFIER_NAMES`.
_DEFAULT_NAMES = {HEAD: "score.weight"}
INIT_STD = 0.02


class Head(nn.Module):
    """Dropout, then scores (M, O) of states (M, C).

    GPT-1's head has no bias (Radford et al. 2018, eq. 3), BERT's head has one.
    """

    def __init__(self, hidden_size: int, outputs: int, dropout: float, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(Tensor(outputs, hidden_size), std=INIT_STD))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(F.dropout(states, self.dropout, self.training), self.weight, self.bias)


class DenseHead(Head):
    """Dropout, a dense layer with tanh, then `Head`: the head of RoBERTa's classifier."""

    def __init__(self, hidden_size: int, outputs: int, dropout: float, bias: bool = False):
        super().__init__(hidden_size, outputs, dropout, bias)
        self.dense = nn.Linear(hidden_size, hidden_size)
        nn.init.normal_(self.dense.weight, std=INIT_STD)
        nn.init.zeros_(self.dense.bias)

    def activation(self, states: Tensor) -> Tensor:
        """Return what follows the dense layer."""
        return torch.tanh(states)

    def forward(self, states: Tensor) -> Tensor:
        dropped = F.dropout(states, self.dropout, self.training)
        return super().forward(self.activation(self.dense(dropped)))


def new_head(module: object, hidden_size: int, outputs: int, dropout: float) -> Head:
    """Return a randomly initialized head for a family; `module` is its `model.py`."""
    kind: type[Head] = vars(module).get("CLASSIFIER_HEAD", Head)
    return kind(hidden_size, outputs, dropout, BIAS in classifier_names(module))


def head_shapes(module: object, hidden_size: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a family's head, by their names in a state dict."""
    with torch.device("meta"):
        head = new_head(module, hidden_size, outputs, 0.0)
    return {f"{PREFIX}{name}": tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def classifier_names(module: object) -> Mapping[str, str]:
    """Return the head's parameters with transformers' names of them in this family.

    `module` is the family's `model.py`; its `CLASSIFIER_NAMES` replace the default.
    """
    names: Mapping[str, str] = vars(module).get("CLASSIFIER_NAMES", _DEFAULT_NAMES)
    return names


def taken_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the head from a model's state dict, and return its own state dict; {} if none."""
    names = [name for name in state if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): state.pop(name) for name in names}


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence in a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]
