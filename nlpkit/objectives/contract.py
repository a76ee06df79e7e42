"""The contract of objectives, and the types shared by objectives, packer and training loop."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from nlpkit.config import FrozenConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nlpkit.data.pack import Batch
    from nlpkit.tokenizers.contract import Tokenizer

IGNORE = -100  # the label of a position that is not predicted, as in torch and transformers


@dataclass(frozen=True)
class Field:
    """One array of an example: its type, and whether values are per token or per sequence.

    With `per="source"` there is one value for each token of a source sequence. The batch has the
    lengths of source sequences in `source_lengths`.
    """

    dtype: type
    per: Literal["token", "sequence", "source"] = "token"
    names: tuple[str, ...] = ()  # names of the values 0, 1, …


@dataclass(frozen=True)
class Spans:
    """Spans of documents that become examples; `dropped` has the counts of omissions, by reason.

    The tokens `before` and `after` are added to every document; `start` and `stop` count them, too.
    A span that exceeds its document continues in the next documents.
    """

    document: np.ndarray  # (I,) int64: in which the span starts
    start: np.ndarray  # (I,) int64
    stop: np.ndarray  # (I,) int64
    dropped: dict[str, int]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.document)


@dataclass
class Term:
    """One term of a loss: the differentiable sum over its targets, and their number.

    The loss of a step is the sum over terms of `weight` times the mean over all targets of the
    step. `parts` has sums and numbers of targets by name, for the log; the default is the term.
    """

    loss_sum: torch.Tensor
    num_targets: int
    weight: float = 1.0
    parts: Mapping[str, tuple[torch.Tensor, int]] | None = None
    of_text: bool = False  # whether targets are tokens of text, so that perplexity is defined


@dataclass
class Loss:
    """The terms of a batch's loss, by name.

    `text_targets` (M,) are the tokens that the `of_text` terms predict together; the default is all
    `labels`. Bits per character are undefined if their number is not that of the targets.
    """

    terms: dict[str, Term]
    text_targets: torch.Tensor | None = None

    @property
    def parts(self) -> dict[str, tuple[torch.Tensor, int]]:
        """Sums without gradient and numbers of targets, by name, for the log."""
        parts: dict[str, tuple[torch.Tensor, int]] = {}
        for name, term in self.terms.items():
            parts |= term.parts or {name: (term.loss_sum.detach(), term.num_targets)}
        return parts

    def mean(self, num_targets: Mapping[str, float], scale: float = 1.0) -> torch.Tensor:
        """Return `scale` times this batch's share of the loss of a step with `num_targets` targets.

        A term without targets in the step adds 0, so that its parameters have gradients.
        """
        shares = [
            term.loss_sum * term.weight * (scale / num_targets[name] if num_targets[name] else 0.0)
            for name, term in self.terms.items()
        ]
        return sum(shares[1:], start=shares[0])

    def targets_of_text(self, labels: torch.Tensor) -> torch.Tensor:
        """Return `text_targets`, by default those of `labels` (N,)."""
        return labels[labels != IGNORE] if self.text_targets is None else self.text_targets

    @property
    def num_targets(self) -> dict[str, int]:
        """The number of targets of each term."""
        return {name: term.num_targets for name, term in self.terms.items()}


class ModelSettings(Protocol):
    """The settings that every family's `Config` has; see `models/config.ModelConfig`.

    An objective that reads other settings lists them in `needs`.
    """

    @property
    def state_size(self) -> int: ...
    @property
    def causal(self) -> bool: ...
    @property
    def pairs(self) -> bool: ...
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


class TrainedModel(Protocol):
    """The methods of a family's `Model` that objectives call.

    A family may have more methods, such as logits for pairs, for objectives that require it.
    """

    # The layer of a task: summaries (S, C) -> outputs (S, O).
    head: Callable[[torch.Tensor], torch.Tensor]
    objective_heads: Any  # an `nn.ModuleDict`: the layers of objectives that are `OwnsHeads`

    def __call__(self, lengths: Sequence[int], **inputs: Any) -> torch.Tensor:
        """Return hidden states (N, C) of a pack of sequences of these lengths."""

    def token_loss(
        self,
        hidden: torch.Tensor,
        index: torch.Tensor,
        targets: torch.Tensor,
        loss_weights: torch.Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the cross entropies at rows `index` (M,), and the values (M,)."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (M, V) for hidden states (M, C)."""

    def summary(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return the representation (S, C) of each sequence for a task."""


class Objective(Protocol):
    """An objective bound to its settings, a tokenizer and a model's settings.

    In a list of objectives the first makes the examples; the others (`joins`) alter them or add a
    term to the loss.
    """

    @property
    def config(self) -> FrozenConfig:
        """The settings."""

    # On the class: all possible fields. On an object: the fields that this model needs.
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]  # the fields that are arguments of the model's `forward`
    parts: tuple[str, ...]  # names of the losses in the log
    predicts_text: bool  # whether a term is `of_text`
    drop_unknown: bool  # whether unknown tokens are removed from the documents
    joins: bool  # whether it may follow another objective in a list; it then has `alter`
    # What the model's `Config` must have: settings, or capabilities (`models/config.py`).
    needs: tuple[str, ...]
    # The number of additional pieces of an example, drawn from other documents.
    mates: int
    # The marks that it needs (names of `data/marks.py`); its ids are then `Marked`.
    marks: tuple[str, ...]
    reads_text: bool  # False: the recipe has no tokenizer, the argument is None

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have; missing ones are added to it."""

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the spans of documents of these `lengths` (D,) that become examples."""

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,).

        If its attribute `slack` is set, an example may have so many tokens fewer.
        """

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return one example made of a piece's `ids`; all randomness comes from `rng`.

        If `mates` is not 0, a third argument `mates` is the list of the other pieces' ids.
        If `marks` is not empty, ids are `data/marks.Marked`: `ids.ids` and `ids.has(name)`.
        """

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of targets of each term in a collated batch; the names are constant."""

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of a batch of tensors, from its hidden states (N, C)."""


@runtime_checkable
class ReadsSome(Protocol):
    """The additional method of an objective whose loss reads the states of some tokens alone.

    A model may leave out the others in its last layer. The first token of each sequence, which many
    models make their summary of, is never left out.
    """

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the tokens whose hidden states the loss reads; None: all of them."""


@runtime_checkable
class OwnsHeads(Protocol):
    """The additional method of an objective with layers that no model of the family has.

    They are trained, saved and resumed with the model, whose `objective_heads` they are by name.
    """

    def heads(self) -> dict[str, nn.Module]:
        """Return new layers by name, drawn by torch's generator; names are the objective's own."""


@runtime_checkable
class Joining(Protocol):
    """The additional method of an objective that may follow another one in a list."""

    def alter(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the example with changed or additional fields."""


def forward(
    objective: Objective,
    model: Callable[..., torch.Tensor],
    batch: Batch,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the model's hidden states (N, C) for the inputs that the objective lists.

    The input `progress` is the completed share of the run, from 0 to 1. States are needed of the
    `rows` (M,), by default of the tokens that the loss reads. Those of other tokens are NaN where
    the model leaves them out, so that a loss that reads them does not go unnoticed.
    """
    given = {**batch.fields, "progress": batch.progress}
    inputs = {name: given[name] for name in objective.inputs}
    method = getattr(model, "forward", None)
    if method is None or "rows" not in inspect.signature(method).parameters:
        return model(batch.lengths, **inputs)
    rows = _rows_read(objective, batch) if rows is None else rows
    if rows is None:
        return model(batch.lengths, **inputs)
    states = model(batch.lengths, rows=rows, **inputs)
    left_out = states.new_full((sum(batch.lengths), states.shape[1]), math.nan)
    return left_out.index_copy(0, rows, states)


def _rows_read(objective: Objective, batch: Batch) -> torch.Tensor | None:
    """Return the tokens (M,) whose states the loss reads; None: all."""
    read = objective.tokens_read(batch) if isinstance(objective, ReadsSome) else None
    # On a GPU the numbers of rows would have to be waited for.
    if read is None or read.device.type != "cpu":
        return None
    read[np.cumsum((0, *batch.lengths[:-1]))] = True
    rows = read.nonzero().squeeze(1)
    return rows if len(rows) < len(read) else None


def labels_read(batch: Batch) -> torch.Tensor | None:
    """Return (N,) bool: the tokens with a label; None in a batch without labels."""
    labels = batch.fields.get("labels")
    return None if labels is None else labels != IGNORE


class TextObjective:
    """An optional base class of objectives on running text, with the usual default values.

    Each document is cut into pieces of `max_length` - `extra` tokens, where `extra` is the number
    of additional tokens of an example. A last piece shorter than `min_piece` is dropped.
    """

    drop_unknown = False
    joins = False
    marks: tuple[str, ...] = ()
    mates = 0
    needs: tuple[str, ...] = ()
    predicts_text = False
    reads_text = True
    unlearned_id: int | None = None  # a token of the documents that is never a target
    extra = 0
    min_piece = 1
    slack = 0  # tokens that an example may have fewer than `length` says

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config
        check_length(config.max_length, model_config)

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return ()

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the pieces of documents of these `lengths` (D,)."""
        return cut_documents(lengths, self.config.max_length - self.extra, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""
        return pieces + self.extra


def cut_documents(lengths: np.ndarray, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens; a document's last one is dropped if below `min_size`."""
    lengths = np.asarray(lengths, np.int64)
    full, remainder = np.divmod(lengths, size)
    kept = full + (remainder >= min_size)
    document = np.repeat(np.arange(len(kept)), kept)
    first = np.cumsum(kept) - kept
    start = (np.arange(len(document)) - np.repeat(first, kept)) * size
    stop = np.minimum(start + size, lengths[document])
    short = (remainder > 0) & (remainder < min_size)
    dropped = {
        "short_pieces": int(short.sum()),
        "short_piece_tokens": int(remainder[short].sum()),
        "documents_without_piece": int((kept == 0).sum()),
    }
    return Spans(document, start, stop, dropped)


def longest_sequence(model_config: object) -> float:
    """Return the most tokens of a sequence that a model takes; infinite if any number."""
    limits = [getattr(model_config, name, None) for name in ("max_positions", "attention_length")]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def check_length(max_length: int, model_config: object) -> None:
    """Raise `ValueError` if examples of `max_length` are longer than `model.max_positions`.

    A family without this setting accepts sequences of any length.
    """
    limit = getattr(model_config, "max_positions", None)
    if limit is not None and max_length > limit:
        raise ValueError(
            f"objective.max_length: {max_length} is more than model.max_positions {limit}; "
            "lower the one or raise the other"
        )
    limit = getattr(model_config, "attention_length", None)
    if limit is not None and max_length > limit:
        raise ValueError(
            f"objective.max_length: {max_length} is more than attention.max_length {limit}; "
            "lower the one or raise the other"
        )
