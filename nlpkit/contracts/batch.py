"""What passes between objectives, the packer and the training loop: examples, batches, losses.

N tokens of a batch, S sequences, T tokens of an example, M targets, I pieces, D documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nlpkit.errors import UsageError
from nlpkit.registry import suggest

if TYPE_CHECKING:
    import torch


IGNORE = -100  # the label of a position that is not predicted, as in torch and transformers

# In an example: the flags (T,) of its tokens, for the objectives that follow in a list.
TOKEN_FLAGS = "token_flags"
LENGTHS = "lengths"  # in an example of several sequences: the tokens of each
SOURCE_LENGTHS = "source_lengths"  # in a batch with source sequences: the tokens of each

# The first token of each sentence, of each word, and every token of the second text of a pair
# (format `parallel`). The place is the bit in the byte of a token: only add behind.
FLAG_NAMES = ("sentence_start", "word_start", "second_side")


@dataclass(frozen=True)
class Field:
    """One array of an example: its type, and whether values are per token or per sequence.

    With `per="source"` it has the tokens of sources, whose lengths are in `source_lengths`.
    """

    dtype: type
    per: Literal["token", "sequence", "source"] = "token"
    names: tuple[str, ...] = ()  # names of the values 0, 1, …
    shape: tuple[int, ...] = ()  # of each value


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


@dataclass(frozen=True)
class FlaggedIds:
    """A piece's ids with their flags: for the examples of an objective with `token_flags`."""

    ids: np.ndarray  # (T,)
    token_flags: np.ndarray  # (T,) uint8, see `FLAG_NAMES`; 0 for tokens that frame a document

    def __len__(self) -> int:
        return len(self.ids)

    def has(self, name: str) -> np.ndarray:
        """Return which tokens have the flag `name`, (T,) bool."""
        return (self.token_flags & bit(name)) != 0


def bit(name: str) -> int:
    """Return the bit of a token flag; raise `UsageError` if there is none of that name."""
    if name not in FLAG_NAMES:
        known = ", ".join(FLAG_NAMES)
        raise UsageError(f"no token flag {name!r}{suggest(name, FLAG_NAMES)}; known: {known}")
    return 1 << FLAG_NAMES.index(name)


@dataclass
class Batch:
    """One pack: flat arrays, the lengths of its sequences, and how many targets it holds."""

    fields: dict[str, Any]  # name -> (N,) or (S,), numpy arrays in the loader, tensors in the loop
    lengths: tuple[int, ...]
    num_targets: dict[str, int] = field(default_factory=dict)  # of each term of the loss
    progress: float = 0.0  # share of the run that is done, from 0 to 1
    words: int = 0  # of the text that it was made of, where the run counts them

    @property
    def tokens(self) -> int:
        """The tokens of the pack, and of the source sequences that belong to it."""
        return sum(self.lengths) + sum(self.fields.get(SOURCE_LENGTHS, ()))

    @property
    def targets(self) -> int:
        """The targets of the first term of the loss."""
        return next(iter(self.num_targets.values()), 0)


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
    is_text: bool = False  # whether targets are tokens of text, so that perplexity is defined


@dataclass
class Loss:
    """The terms of a batch's loss, by name.

    `text_targets` (M,) are the tokens that the `is_text` terms predict together; the default is all
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
