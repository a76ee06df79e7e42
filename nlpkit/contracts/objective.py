"""The contract of `objectives/NAME.py`: `Config`, and `Objective`, all of whose members are here.

`TextObjective` is a base for objectives on running text, `contracts/task.Task` for rows of files.

N tokens of a batch, S sequences, T tokens of an example, C model width, V vocabulary, D documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Batch, Field, Loss, Spans
from nlpkit.contracts.family_model import LanguageModel
from nlpkit.json_types import JsonMapping

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nlpkit.contracts.tokenizer import Template, Tokenizer

    Objectives = Sequence[type["Objective"]]


class ModelSettings(Protocol):
    """The settings that every family's `Config` has; see `models/config.ModelConfig`.

    An objective that reads other settings lists them in `needs`.
    """

    @property
    def state_size(self) -> int: ...
    @property
    def task_tokens(self) -> tuple[str, str, str]: ...
    @property
    def delimiters(self) -> int: ...
    @property
    def summary_token(self) -> str: ...
    @property
    def mask_token(self) -> str: ...
    @property
    def target_tokens(self) -> tuple[str, str]: ...
    @property
    def label_smoothing(self) -> float: ...

    def can(self, word: str) -> bool:
        """Return whether the model has a capability, a word of `models/config.CAPABILITIES`."""

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of some families, or the default where this one does not have it."""


class TrainedModel(LanguageModel, Protocol):
    """A model of a family, with the layers of objectives and tasks.

    A family may have more methods, such as logits for pairs, for objectives that require it.
    """

    head: Callable[[torch.Tensor], torch.Tensor]  # of a task: summaries (S, C) -> outputs (S, O)
    objective_heads: nn.ModuleDict  # the layers of objectives with `heads`

    def __call__(self, lengths: Sequence[int], **inputs: Any) -> torch.Tensor:
        """Return what `forward` returns."""


PREPROCESSOR = "preprocessor_config.json"  # how transformers makes inputs, such as of images


class Objective(ABC):
    """An objective bound to its settings, a tokenizer and a model's settings.

    In a list of objectives the first makes the examples; the others (`composable`) change them or
    add a term to the loss.
    """

    fields: Mapping[str, Field]  # of the class: all possible ones; of an object: those it needs
    inputs: tuple[str, ...]  # the fields that are arguments of the model's `forward`
    parts: tuple[str, ...]  # names of the losses in the log
    # Scores of held-out data, beside `metrics`, which `train.best_by` takes: those of `parts` of
    # which more is better, such as an accuracy, and those of `compute_scores`.
    scores: tuple[str, ...] = ()
    # What the model's `Config` must have: settings, or capabilities (`models/config.py`).
    needs: tuple[str, ...] = ()
    predicts_text: bool = False  # whether a term is `is_text`
    reads_text: bool = True  # False: the recipe has no tokenizer, the argument is None
    two_tokenizers: bool = False  # whether sources and targets may have a tokenizer each
    drop_unknown: bool = False  # whether unknown tokens are removed from the documents
    composable: bool = False  # whether it may follow another objective in a list
    adds_only: bool = False  # composable, and it makes no examples: it may not be the first
    beside_others: str = ""  # in a mixture: what to do about inputs that others do not have
    # The number of additional pieces of an example, drawn from other documents.
    negatives: int = 0
    # What it needs to know of tokens (`FLAG_NAMES` in `contracts/batch.py`); ids are `FlaggedIds`.
    token_flags: tuple[str, ...] = ()
    cut_at: str = ""  # the flag at which pieces begin; see `spans_cut_at`
    repeats_after: int = 2**32  # epochs; from then on examples are drawn as in the first ones again
    max_shrink: int = 0  # tokens that an example may have fewer than `length` says
    unlearned_id: int | None = None  # a token of the documents that is never a target
    # What `transformers` is told of the special tokens around its texts; None: nothing. Of a text
    # that the model continues, it is what is given.
    template: Template | None = None
    reads_summary: bool = False  # whether it reads the state that summarizes a sequence
    metrics: tuple[str, ...] = ()  # names of the scores (`nlpkit score`) of a task
    has_answers: bool = False  # whether rows have answers that scores compare
    head_kind: str = ""  # the kind of task of its layer, which has a model in transformers
    lm_weight: float = 0.0  # of an auxiliary next-token loss
    # `(config)`, of the class: the checkpoints, by name, of models that the loss reads, such as a
    # teacher; None: it has none. They are neither trained nor saved; a run goes on with the same
    # ones only. `frozen_models` are then the families' models, by name. Of a name None the
    # checkpoint is that of `init_from`, whose weights the loss shares with adapters (`dpo`).
    frozen: ClassVar[Callable[[Any], Mapping[str, str | None]] | None] = None
    frozen_models: Mapping[str, Any] = MappingProxyType({})
    prompt: Any = None  # a soft prompt before the text (`objectives/examples/soft_prompt.py`)
    # Of a list: its objectives. Of a mixture: its members.
    objectives: tuple[Objective, ...] = ()
    members: tuple[Objective, ...] = ()

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        """Bind the settings; raise `ValueError` if they do not fit each other or the model."""
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config

    def leave_out(self, *names: str) -> None:
        """Remove fields, and inputs of the model, that these settings do not need."""
        self.inputs = tuple(name for name in self.inputs if name not in names)
        self.fields = {name: kind for name, kind in self.fields.items() if name not in names}

    @classmethod
    def special_tokens(cls, config: Any, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have; missing ones are added to it."""
        return ()

    def read_counts(self, count: Callable[[], np.ndarray]) -> None:
        """Call `count` if it needs how often each token, up to the largest id, is in the text."""
        for each in (*self.objectives, *self.members):
            each.read_counts(count)

    @abstractmethod
    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the spans of documents of these `lengths` (D,) that become examples."""

    def spans_cut_at(self, lengths: np.ndarray, starts: np.ndarray) -> Spans:
        """Return the spans that begin at `starts`, the tokens with the flag `cut_at`.

        `starts` counts the tokens of all documents as one.
        """
        raise NotImplementedError  # asked only where there is a `cut_at`

    @abstractmethod
    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""

    # `(ids, rng)`: one example (name -> array) made of a piece's ids; all randomness comes from
    # `rng`. With `negatives`, a third argument of this name is the list of the other pieces' ids;
    # with `token_flags`, ids are `FlaggedIds`. A task's is `(item, rng)`.
    example: ClassVar[Callable[..., dict[str, np.ndarray]]]

    def transform(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the first objective's example with changed or additional fields."""
        return example

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example as it is when this share of the run is done, from 0 to 1."""
        return example

    @abstractmethod
    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of targets of each term in a collated batch; the names are constant.

        The fields of the batch, and the tokens of each sequence, (S,), as `LENGTHS`.
        """

    @abstractmethod
    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of a batch of tensors, from its hidden states (N, C)."""

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the tokens whose hidden states the loss reads; None: all of them.

        A model may leave out the others in its last layer. The first token of each sequence, which
        many models make their summary of, is never left out.
        """
        return None

    def compute_scores(self, model: TrainedModel) -> Mapping[str, float | None]:
        """Return those of `scores` that are of data of its own, once for each evaluation.

        They are the same in all processes. The model is in evaluation, without gradients.
        """
        return {}

    def heads(self) -> dict[str, nn.Module]:
        """Return new layers that no family has, by name, drawn by torch's generator.

        They are trained, saved and resumed with the model, as its `objective_heads`.
        """
        return {}

    # Files of a checkpoint that `transformers` reads, such as its processor's.

    @classmethod
    def with_preprocessor(cls, config: Any, settings: JsonMapping) -> Any:
        """Return `config` with what it does not set from `PREPROCESSOR`, or with defaults."""
        return config

    def checkpoint_files(self) -> Mapping[str, str]:
        """Return texts of files that lie in each checkpoint, by name, such as a chat template."""
        parts = (*self.objectives, *self.members)
        return {name: text for each in parts for name, text in each.checkpoint_files().items()}

    # The rest is for `nlpkit selftest`. In a list each objective describes only itself. The three
    # methods are called only where an objective has its own (`check.defines`).

    shown_rate: float | None = None  # the share of the targets of which `shown` is True
    # Whether a head classifies each token as replaced (label 1) or original (label 0).
    detects: bool = False

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: positions whose target is visible or replaced by a random word.

        The prediction there may depend on the token. By default no target is visible, so an
        objective with 80/10/10 masking needs this method.
        """
        raise NotImplementedError

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the example with the source's tokens back in `input_ids`.

        By default each label is put back at its own position or at the next one.
        """
        raise NotImplementedError

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the ids of the texts of an unmasked example, in the order of the source.

        Without negatives their concatenation is the piece. With negatives each text is a contiguous
        part of the piece or of a negative. By default texts are the tokens between special tokens.
        """
        raise NotImplementedError


class ObjectiveFile(Protocol):
    """The module."""

    Config: type[FrozenConfig]
    Objective: type[Objective]


CONTRACTS = (ObjectiveFile,)
CLASSES = {"Objective": Objective}
