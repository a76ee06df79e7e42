"""What every objective offers, and the small types that pass between objective, packer and loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch

    from nlpkit.data.pack import Batch
    from nlpkit.tokenizers.contract import Tokenizer

IGNORE = -100  # the label of a position that is not predicted, as in torch and transformers


@dataclass(frozen=True)
class Field:
    """One array of an example: its type, and whether it has a value a token or one a sequence.

    Fields per `source` have a value a token of a source sequence, whose length is its own; the
    batch has these lengths as `source_lengths`.
    """

    dtype: type
    per: Literal["token", "sequence", "source"] = "token"
    names: tuple[str, ...] = ()  # what its numbers stand for, from 0


@dataclass(frozen=True)
class Spans:
    """Spans of documents that become examples; `dropped` counts what is left out, by reason.

    With `before` or `after` every document is framed by these tokens: `start` and `stop` count
    from the first of the frame. A span that goes beyond its document runs on in the next ones.
    """

    document: np.ndarray  # (I,) int64, the one in which a span starts
    start: np.ndarray  # (I,) int64
    stop: np.ndarray  # (I,) int64
    dropped: dict[str, int]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.document)


@dataclass(frozen=True)
class Prompt:
    """A sequence to go on with, or to fill in: what is given, and slots for new tokens.

    T tokens are given, M are to come. Slot m is predicted from the state of the token in the slot
    before it, or of a given token: `predicted_from`. A model that encodes a source has its S tokens
    in `source`, inputs of `forward` as well.
    """

    given: Mapping[str, np.ndarray]  # inputs of the model's `forward`, (T,) each
    slots: Mapping[str, np.ndarray]  # those of the tokens to come, (M,) each; not `input_ids`
    predicted_from: np.ndarray  # (M,) int64: a place in `given`, or -1 for the slot before
    text: np.ndarray  # ids of the text in `given`, without prompts and special tokens
    open: bool = True  # whether an end token may end it before its last slot
    cut: int = 0  # tokens of the text that were left out, as the model takes no more
    source: Mapping[str, np.ndarray] = field(default_factory=dict)  # (S,) each


@dataclass
class Term:
    """One term of a loss: a sum over its targets (differentiable), and their number.

    The loss of a step is the sum of its terms, each its `weight` times the mean over the targets of
    the *whole* step. `parts` is a breakdown for the log: sum and number by name; by default the
    term itself.
    """

    loss_sum: torch.Tensor
    num_targets: int
    weight: float = 1.0
    parts: Mapping[str, tuple[torch.Tensor, int]] | None = None
    of_text: bool = False  # whether its targets are tokens of `labels`: perplexity means something


@dataclass
class Loss:
    """The terms of a batch's loss, by name."""

    terms: dict[str, Term]

    @property
    def parts(self) -> dict[str, tuple[torch.Tensor, int]]:
        """What the log shows of all terms: sum, without gradient, and number by name."""
        found: dict[str, tuple[torch.Tensor, int]] = {}
        for name, term in self.terms.items():
            found |= term.parts or {name: (term.loss_sum.detach(), term.num_targets)}
        return found

    def mean(self, num_targets: Mapping[str, float], scale: float = 1.0) -> torch.Tensor:
        """Return `scale` times what this batch adds to the loss of a step with so many targets.

        A term without targets in the whole step adds 0, so that its parameters have gradients.
        """
        shares = [
            term.loss_sum * term.weight * (scale / num_targets[name] if num_targets[name] else 0.0)
            for name, term in self.terms.items()
        ]
        return sum(shares[1:], start=shares[0])

    @property
    def num_targets(self) -> dict[str, int]:
        """Targets of each term."""
        return {name: term.num_targets for name, term in self.terms.items()}


class TrainedModel(Protocol):
    """What objectives ask of a model; the family's `Model` has it.

    Of its own, a family may offer more, such as logits for pairs: then the objective names it.
    """

    head: Any  # the layer that a task puts on a summary: states (S, C) to outputs (S, O)

    def __call__(self, lengths: Sequence[int], **inputs: Any) -> Any:
        """Return hidden states (N, C) of a pack of sequences of these lengths."""

    def token_loss(
        self,
        hidden: torch.Tensor,
        index: torch.Tensor,
        targets: torch.Tensor,
        loss_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross entropy at rows `index` (M,), and each target's."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (M, V) for hidden states (M, C)."""

    def summary(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return (S, C), what stands for each sequence in a task."""


class Objective(Protocol):
    """An objective bound to its settings, a tokenizer and a model's settings.

    In a list of objectives the first makes the examples, and those that follow (`joins`) alter
    them, or add a term to the loss.
    """

    config: Any  # its settings
    # Of the class, all fields that it can have; of an object, those that this model asks for.
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]  # the fields that are arguments of the model's `forward`
    parts: tuple[str, ...]  # what is reported apart
    predicts_text: bool  # whether a term is `of_text`
    drop_unknown: bool  # whether unknown tokens are left out of the documents
    joins: bool  # whether it may follow another objective in a list: then it has `alter`
    # What the model's `Config` must have: settings, or capabilities (`models/config.py`).
    needs: tuple[str, ...]
    # How many other pieces an example is made with, drawn from other documents.
    mates: int
    # Which marks it needs beside the ids (names of `data/marks.py`): it then gets `Marked`.
    marks: tuple[str, ...]
    reads_text: bool  # False: a recipe has no tokenizer, and the objective gets None for it

    @classmethod
    def special_tokens(cls, model_config: Any) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have; others are added to it."""

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the spans of documents of these `lengths` (D,) that become examples."""

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return one example made of a piece's `ids`; all randomness comes from `rng`.

        Where `mates` is not 0, a third argument `mates` is the list of the other pieces' ids.
        Where `marks` is not empty, ids come as `data/marks.Marked`: `ids.ids` and `ids.has(name)`.
        """

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the targets of each term in a collated batch; the names are always the same."""

    def loss(self, model: TrainedModel, hidden: Any, batch: Batch) -> Loss:
        """Return the loss of a batch of tensors, from what `model.forward` gave for it."""


@runtime_checkable
class Joining(Protocol):
    """What an objective offers that may follow another one in a list."""

    def alter(
        self, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return the example with its fields changed, or with more of them."""


def forward(objective: Objective, model: Callable[..., Any], batch: Batch) -> Any:
    """Return what the model makes of the inputs that the objective names: hidden states (N, C).

    `progress` among the inputs is the share of the run that is done, from 0 to 1.
    """
    given = {**batch.fields, "progress": batch.progress}
    return model(batch.lengths, **{name: given[name] for name in objective.inputs})


class TextObjective:
    """What objectives on running text share, at the values that most have: a base, not a must.

    Each document is cut into pieces of `max_length` tokens, less those that an example has beside
    its piece (`extra`); a last piece shorter than `min_piece` is dropped, counted.
    """

    drop_unknown = False
    joins = False
    marks: tuple[str, ...] = ()
    mates = 0
    needs: tuple[str, ...] = ()
    predicts_text = False
    reads_text = True
    extra = 0
    min_piece = 1

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: Any):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config
        check_length(config.max_length, model_config)

    @classmethod
    def special_tokens(cls, model_config: Any) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return ()

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the pieces of documents of these `lengths` (D,)."""
        return cut_documents(lengths, self.config.max_length - self.extra, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""
        return pieces + self.extra


def cut_documents(lengths: np.ndarray, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens of each document; a last one below `min_size` is dropped."""
    lengths = np.asarray(lengths, np.int64)
    full, rest = np.divmod(lengths, size)
    kept = full + (rest >= min_size)
    document = np.repeat(np.arange(len(kept)), kept)
    first = np.cumsum(kept) - kept
    start = (np.arange(len(document)) - np.repeat(first, kept)) * size
    stop = np.minimum(start + size, lengths[document])
    short = (rest > 0) & (rest < min_size)
    dropped = {
        "short_pieces": int(short.sum()),
        "short_piece_tokens": int(rest[short].sum()),
        "documents_without_piece": int((kept == 0).sum()),
    }
    return Spans(document, start, stop, dropped)


def check_length(max_length: int, model_config: Any) -> None:
    """Raise `ValueError` if examples of `max_length` are longer than `model.max_positions`.

    A family without that setting takes sequences of any length.
    """
    limit = getattr(model_config, "max_positions", None)
    if limit is not None and max_length > limit:
        raise ValueError(
            f"objective.max_length: {max_length} is more than model.max_positions {limit}; "
            "lower the one or raise the other"
        )


@runtime_checkable
class Generative(Protocol):
    """What an objective offers, beside its contract, if its model can generate text."""

    max_length: int  # tokens of text, given and new, that fit together
    eos_token_ids: tuple[int, ...]  # tokens that end a text
    suppress_tokens: tuple[int, ...]  # tokens that were never a target: not to be generated
    drop_unknown: bool

    def continue_text(self, ids: Sequence[int], room: int) -> Prompt:
        """Return the prompt for a text, with `room` slots, fewer than `max_length`.

        Raises:
            ValueError: nothing can be predicted from this text.
        """


@runtime_checkable
class Filling(Protocol):
    """What it offers if its model can fill in blanks, too."""

    def fill_blanks(self, parts: Sequence[Sequence[int]], blanks: Sequence[int]) -> Prompt:
        """Return the prompt for the ids before, between and after `blanks` of so many tokens.

        Raises:
            ValueError: the text is too long.
        """
