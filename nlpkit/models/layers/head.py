"""The task head: a linear layer on states, the same for all families, and its names elsewhere.

M states, C model width, O outputs, S sequences.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.contracts.family_model import FamilyModel
from nlpkit.models.meta import on_meta

PREFIX = "head."  # of the head's parameters in a state dict
HEAD = "head.weight"
BIAS = "head.bias"  # only if the layer in transformers has a bias
SEQUENCE = "sequence_classification"  # the kind of head of a task that names none
CHOICE = "multiple_choice"
OF_TOKENS = ("token_classification", "question_answering")  # read states of tokens, no summary
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
    """Dropout (or not), a dense layer, then `Head`; by default RoBERTa's classifier."""

    def __init__(
        self,
        hidden_size: int,
        outputs: int,
        dropout: float,
        bias: bool = False,
        *,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        drops_first: bool = True,
    ):
        super().__init__(hidden_size, outputs, dropout, bias)
        self.activation, self.drops_first = activation, drops_first
        self.dense = nn.Linear(hidden_size, hidden_size)
        nn.init.normal_(self.dense.weight, std=INIT_STD)
        nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor) -> Tensor:
        if self.drops_first:
            states = F.dropout(states, self.dropout, self.training)
        return super().forward(self.activation(self.dense(states)))


@dataclass(frozen=True)
class TaskHead:
    """transformers' model with a task's layer: its class, its names of the layer, and the bias.

    A class that begins with `For` is that end of the name of the model's class.

    Without a class, transformers has no such model: the checkpoint keeps the class of the family.
    """

    architecture: str
    layer: str
    bias: bool = True
    kind: Callable[..., Head] = Head  # called with width, outputs, dropout and `bias`
    # Modules of a head of more than one layer, with transformers' names; or weights without a bias.
    modules: Mapping[str, str] = field(default_factory=dict)
    # Those that begin as modules of the model: both have one name in transformers.
    begin_as: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_two(
        cls, architecture: str, layer: str, dense: str, kind: Callable[..., Head] = DenseHead
    ) -> "TaskHead":
        """Return a head with another layer, which is called `dense` in transformers."""
        return cls(architecture, layer, kind=kind, modules={"dense": dense})

    def is_of(self, architectures: Iterable[str]) -> bool:
        """Return whether one of these classes has this head."""
        is_end, own = self.architecture.startswith("For"), self.architecture
        return any(name.endswith(own) if is_end else name == own for name in architectures)

    def class_for(self, whole: str) -> str:
        """Return the class with this head, where the complete model is of the class `whole`."""
        is_end = self.architecture.startswith("For")
        return whole.partition("For")[0] + self.architecture if is_end else self.architecture

    @property
    def names(self) -> Mapping[str, str]:
        """Our names of the head's parameters with transformers' names."""
        names = {
            f"{PREFIX}{ours}{end}": f"{theirs}{end}"
            for ours, theirs in self.modules.items()
            for end in ([""] if ours.endswith(".weight") else [".weight", ".bias"])
        }
        names[HEAD] = f"{self.layer}.weight"
        return names | {BIAS: f"{self.layer}.bias"} if self.bias else names

    def new(self, hidden_size: int, outputs: int, dropout: float) -> Head:
        """Return a randomly initialized head."""
        return self.kind(hidden_size, outputs, dropout, self.bias)

    def add(self, model: nn.Module, hidden_size: int, outputs: int, dropout: float) -> Head:
        """Give a model, whose weights are loaded, a new head, and return that."""
        model.head = head = self.new(hidden_size, outputs, dropout)
        for ours, of_model in self.begin_as.items():
            head.get_submodule(ours).load_state_dict(model.get_submodule(of_model).state_dict())
        return head

    def shapes(self, hidden_size: int, outputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the head's parameters, by their names in a state dict."""
        with on_meta():
            state = self.new(hidden_size, outputs, 0.0).state_dict()
        return {f"{PREFIX}{name}": tuple(tensor.shape) for name, tensor in state.items()}


# Ends of the names of transformers' classes with a task's layer.
_CLASSES = (
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
    "ForMultipleChoice", "DoubleHeadsModel",
)  # fmt: skip
# The layer of a family that has no model for a kind of task in transformers.
_OWN = TaskHead("", "score", bias=False)


def task_head(module: FamilyModel, kind: str) -> TaskHead:
    """Return the model with the layer of a kind of task; its class may be empty.

    Without a model for multiple choice, the layer is that of the sequence classifier: both read the
    summary of a sequence.
    """
    heads: Mapping[str, TaskHead] = module.TASK_HEADS
    return heads.get(kind) or (heads.get(SEQUENCE, _OWN) if kind == CHOICE else _OWN)


def kind_of(module: FamilyModel, head: TaskHead | None) -> str:
    """Return the kind of task of a family's head; "" of one that transformers does not have."""
    return next((kind for kind, each in module.TASK_HEADS.items() if each is head), "")


def find_head(
    module: FamilyModel, architectures: Iterable[str], tensors: Mapping[str, Tensor]
) -> TaskHead | None:
    """Return the head of a checkpoint, or None: by its class, else by the name of its layer.

    The layer of a class that the family lacks is not taken for that of another one.
    """
    heads = [head for head in module.TASK_HEADS.values() if head.names[HEAD] in tensors]
    named = [head for head in heads if head.is_of(architectures)]
    if not named and any(name.endswith(_CLASSES) for name in architectures):
        return None
    own = [_OWN] if _OWN.names[HEAD] in tensors else []
    return next(iter([*named, *own, *heads]), None)


def explain_unread(module: FamilyModel, architectures: Iterable[str]) -> str:
    """Return which class with a task's layer is not read, and what is possible; "" without one."""
    heads = [head for head in module.TASK_HEADS.values() if head.architecture]
    for name in architectures:
        if name.endswith(_CLASSES) and not any(head.is_of([name]) for head in heads):
            known = ", ".join(head.class_for(module.FORMAT.architecture) for head in heads)
            return (
                f"{name} is not read; with a task's layer nlpkit reads of this family: "
                f"{known or 'none'}; to begin a run with its body, save that alone, "
                "model.base_model.save_pretrained(DIR) in transformers, and set init_from: DIR"
            )
    return ""


def head_names(module: FamilyModel) -> list[tuple[str, str]]:
    """Return all pairs of our name and transformers' name of a task's layer in this family."""
    pairs = [pair for head in (*module.TASK_HEADS.values(), _OWN) for pair in head.names.items()]
    return [*dict.fromkeys(pairs)]


def pop_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the head from a model's state dict, and return its own state dict; {} if none."""
    names = [name for name in state if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): state.pop(name) for name in names}
