"""The task head: a linear layer on states, the same for all families, and its names elsewhere.

M states, C model width, O outputs, S sequences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = "head.weight"  # name in a state dict
BIAS = "head.bias"  # only if the layer in transformers has a bias
SEQUENCE = "sequence_classification"  # the kind of head of a task that names none
CHOICE = "multiple_choice"
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


@dataclass(frozen=True)
class TaskHead:
    """transformers' model with a task's layer: its class, its name of the layer, and the bias.

    Without a class, transformers has no such model: the checkpoint keeps the class of the family.
    """

    architecture: str
    layer: str
    bias: bool = True

    @property
    def names(self) -> Mapping[str, str]:
        """Our names of the layer's parameters with transformers' names."""
        names = {HEAD: f"{self.layer}.weight"}
        return names | {BIAS: f"{self.layer}.bias"} if self.bias else names


# The layer of a family that has no model for a kind of task in transformers.
_OWN = TaskHead("", "score", bias=False)


def task_heads(module: object) -> Mapping[str, TaskHead]:
    """Return transformers' models with a task's layer by the kind of task.

    `module` is the family's `model.py`. `TASK_HEADS` is its table; `CLASSIFIER` with
    `CLASSIFIER_NAMES` is a short form for a family that has a sequence classifier alone.
    """
    heads: Mapping[str, TaskHead] | None = vars(module).get("TASK_HEADS")
    if heads is not None:
        return heads
    names = vars(module).get("CLASSIFIER_NAMES", _OWN.names)
    layer = names[HEAD].removesuffix(".weight")
    return {SEQUENCE: TaskHead(vars(module).get("CLASSIFIER", ""), layer, BIAS in names)}


def task_head(module: object, kind: str) -> TaskHead:
    """Return the model with the layer of a kind of task; its class may be empty.

    Without a model for multiple choice, the layer is that of the sequence classifier: both read the
    summary of a sequence.
    """
    heads = task_heads(module)
    return heads.get(kind) or (heads.get(SEQUENCE, _OWN) if kind == CHOICE else _OWN)


def saved_head(
    module: object, architectures: Iterable[str], tensors: Mapping[str, Tensor]
) -> TaskHead | None:
    """Return the head of a checkpoint, or None: by its class, else by the name of its layer."""
    heads = [head for head in task_heads(module).values() if head.names[HEAD] in tensors]
    named = [head for head in heads if head.architecture in architectures]
    own = [_OWN] if _OWN.names[HEAD] in tensors else []
    return next(iter([*named, *own, *heads]), None)


def head_names(module: object) -> list[tuple[str, str]]:
    """Return all pairs of our name and transformers' name of a task's layer in this family."""
    pairs = [pair for head in (*task_heads(module).values(), _OWN) for pair in head.names.items()]
    return [*dict.fromkeys(pairs)]


def taken_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the head from a model's state dict, and return its own state dict; {} if none."""
    return {name.rpartition(".")[2]: state.pop(name) for name in (HEAD, BIAS) if name in state}


def last_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the last token of each sequence in a pack."""
    return hidden[torch.tensor(lengths, device=hidden.device).cumsum(0) - 1]
