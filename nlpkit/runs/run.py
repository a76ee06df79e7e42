"""The parts of a run: its model and its data, and together with the optimizers, ready to train."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.optim import Optimizer

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.batch import Batch
from nlpkit.contracts.family_model import FamilyModel
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.corpus import Corpus
from nlpkit.data.files import Input
from nlpkit.data.items import TaskDataset
from nlpkit.data.loader import Examples
from nlpkit.json_types import JsonObject
from nlpkit.models import families
from nlpkit.models.adapter_config import Config as LoraConfig
from nlpkit.models.layers.head import SEQUENCE, TaskHead, task_head
from nlpkit.objectives.examples.text import forward
from nlpkit.recipe import Resolved
from nlpkit.train.log import Log
from nlpkit.train.machine import unwrapped
from nlpkit.train.schedule import ResolvedTraining
from nlpkit.train.state import State

if TYPE_CHECKING:
    from nlpkit.runs.frozen import Frozen
    from nlpkit.runs.soft_prompts import Prompt
    from nlpkit.train.average import Average

T = TypeVar("T")
FITTED = "fitted"  # in run.json and training.json: what `train.memory` chose


@dataclass
class Data:
    """Tokenized training and held-out text, and the objective's examples of them."""

    tokenizer: Tokenizer | None  # None if the objective reads no text
    objective: Objective
    train: Corpus | TaskDataset
    valid: Corpus | TaskDataset | None
    examples: Examples
    held_out: Examples | None
    inputs: dict[str, Sequence[Input]]  # the files of `train`, `valid` and what else is read
    # By length, of a recipe with a list `objective.max_length`.
    by_length: Mapping[int, Examples] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)  # more of what is read, for run.json

    @property
    def vocab_size(self) -> int:
        """The number of tokens; 0 without a tokenizer."""
        return 0 if self.tokenizer is None else self.tokenizer.vocab_size

    def held_out_entropy(self) -> float | None:
        """Return the unigram entropy of the held-out text, without tokens that are no targets."""
        if self.valid is None:
            return None
        return self.valid.unigram_entropy(self.objective.unlearned_id)

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and the tokenized text, on which the examples depend."""
        parts = [] if self.tokenizer is None else [self.tokenizer.fingerprint()]
        parts += [each.fingerprint for each in (self.train, self.valid) if each is not None]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass
class ModelPart:
    """A family's module and the settings of the model to build."""

    family: str
    config: Any  # a `ModelConfig`: the family's own
    start: dict[str, Tensor] | None  # weights of `init_from`, until `build_model` takes them
    source: Path | None = None  # the checkpoint that gives the sizes and the tokenizer
    resumed: Path | None = None  # the checkpoint that `--resume` names
    rows: int | None = None  # number of tokens of `source`; None: no checkpoint, or no vocabulary
    warnings: Sequence[str] = ()  # missing and unexpected tensors
    outputs: int = 0  # of the task's output layer; 0: there is none
    head_kind: str = SEQUENCE  # the kind of task of that layer, which decides its name on disk
    head_dropout: float = 0.0
    new_head: str = ""  # why that of `init_from` is not kept, if it has one
    # Makes the layers of the objective; None: it has none, or is not bound yet.
    objective_heads: Callable[[], Mapping[str, nn.Module]] | None = None
    lora: LoraConfig | None = None
    # Layers with adapters: our name -> the name in transformers.
    targets: Mapping[str, str] = field(default_factory=dict)
    base_hash: str | None = None  # of the base checkpoint of the adapters
    frozen: "Sequence[Frozen]" = ()  # models that the objective reads
    prompt: "Prompt | None" = None  # what `train.tune: prompt` trains
    source_weights: JsonObject | None = None  # path and hash of those of `init_from`

    def module(self) -> FamilyModel:
        """Return the module `models/FAMILY/model.py`; a dotted name gives the user's module."""
        return families.load_model(self.family)

    @property
    def head(self) -> TaskHead:
        """transformers' model with the task's output layer."""
        return task_head(self.module(), self.head_kind)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The parameters whose first dimension is the vocabulary."""
        return families.load(self.family).VOCABULARY

    def new_tokens(self, vocab_size: int) -> int:
        """Return the number of tokens that `init_from` does not have."""
        return vocab_size - self.rows if self.rows is not None else 0


class Training(nn.Module):
    """Model and objective as one module: DDP, FSDP and autocast must also wrap the loss.

    With `precision` "bf16", products are in bfloat16 (autocast).
    """

    model: Any  # a family's `Model`; the type of an `nn.Module` attribute would not show it

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model = model
        self.objective = objective
        self.precision = "fp32"

    def forward(self, batch: Batch | None, predict: bool = False) -> Any:
        """Return the loss, with `predict` also a task's pairs; without a batch `compute_scores`."""
        with self._autocast():
            if batch is None:
                return self.objective.compute_scores(self.model)
            hidden = forward(self.objective, self.model, batch)
            if predict and isinstance(self.objective, Task):
                return self.objective.predict(self.model, hidden, batch)
            loss = self.objective.loss(self.model, hidden, batch)
            return (loss, []) if predict else loss

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        device = next(self.model.parameters()).device.type
        return torch.autocast(device, torch.bfloat16)


@dataclass
class Run:
    """A run with its parts, ready to train."""

    resolved: Resolved
    settings: ResolvedTraining  # the section `train`, with its length in steps
    directory: RunDirectory
    part: ModelPart
    data: Data
    accelerator: Accelerator
    training: nn.Module
    optimizers: list[Optimizer]
    log: Log
    fitted: tuple[int, bool, int] | None = None  # what `train.memory` chose
    average: "Average | None" = None
    # Called with the state after each step.
    after_update: list[Callable[[State], None]] = field(default_factory=list)

    @property
    def unwrapped(self) -> Training:
        """The training module without the wrappers of accelerate."""
        return unwrapped(self.training)

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the average of its weights, if there is one."""
        return self.average.applied() if self.average else nullcontext()


def from_first(compute: Callable[[], T]) -> T:
    """Return on all ranks the result of `compute`, which is called on rank 0 only."""
    processes = PartialState()
    results = [compute() if processes.is_main_process else None]
    if processes.num_processes > 1:
        broadcast_object_list(results)
    return results[0]  # type: ignore[return-value]
