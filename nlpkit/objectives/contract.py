"""What every objective offers, and the small types that pass between objective, packer and loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch

IGNORE = -100  # the label of a position that is not predicted, as in torch and transformers


@dataclass(frozen=True)
class Field:
    """One array of an example: its type, and whether it has a value a token or one a sequence."""

    dtype: type
    per: str = "token"


@dataclass(frozen=True)
class Pieces:
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
    before it, or of a given token: `source`.
    """

    given: Mapping[str, np.ndarray]  # inputs of the model's `forward`, (T,) each
    slots: Mapping[str, np.ndarray]  # those of the tokens to come, (M,) each; not `input_ids`
    source: np.ndarray  # (M,) int64: a place in `given`, or -1 for the slot before
    text: np.ndarray  # ids of the text in `given`, without prompts and special tokens
    open: bool = True  # whether an end token may end it before its last slot
    cut: int = 0  # tokens of the text that were left out, as the model takes no more


@dataclass
class Loss:
    """Sum over the targets of a batch (differentiable), their number, and each part's share."""

    total: torch.Tensor
    count: int
    parts: dict[str, tuple[torch.Tensor, int]]


class Objective(Protocol):
    """An objective bound to its settings, a tokenizer and a model's sizes."""

    fields: Mapping[str, Field]
    inputs: tuple[str, ...]  # the fields that are arguments of the model's `forward`
    parts: tuple[str, ...]  # what is reported apart
    predicts_text: bool  # whether every target is a token: perplexity means something
    drop_unknown: bool  # whether unknown tokens are left out of the documents
    joins: bool  # whether it may follow another objective in a list
    # What the model's `Config` must have: settings, or properties that say what the family can do
    # (`causal`: a state sees its own token and those to its left, no other).
    needs: tuple[str, ...]
    # How many other pieces an example is made with, drawn from other documents.
    mates: int
    # Which marks it needs beside the ids (names of `data/marks.py`): it then gets `Marked`.
    marks: tuple[str, ...]
    reads_text: bool  # False: a recipe has no tokenizer, and the objective gets None for it

    def pieces(self, lengths: np.ndarray) -> Pieces:
        """Return the spans of documents of these `lengths` (D,) that become examples."""

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return one example made of a piece's `ids`; all randomness comes from `rng`.

        Where `mates` is not 0, a third argument `mates` is the list of the other pieces' ids.
        Where `marks` is not empty, ids come as `data/marks.Marked`: `ids.ids` and `ids.has(name)`.
        """

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        """Return the number of targets in a collated batch."""

    def loss(self, model: Any, batch: Mapping[str, Any], lengths: tuple[int, ...]) -> Loss:
        """Return the loss of a batch of tensors whose sequences have these `lengths`."""


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

    longest: int  # tokens of text, given and new, that fit together
    ends: tuple[int, ...]  # tokens that end a text
    never: tuple[int, ...]  # tokens that were never a target: not to be generated
    drop_unknown: bool

    def continue_text(self, ids: Sequence[int], room: int) -> Prompt:
        """Return the prompt for a text, with `room` slots, fewer than `longest`.

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
