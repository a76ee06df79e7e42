"""Bases of objectives on running text: its pieces, all of one length; a loss over labels.

I pieces, D documents, N tokens of a batch, M targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nlpkit.contracts.batch import IGNORE, Batch, Loss, Spans, Term
from nlpkit.contracts.objective import ModelSettings, Objective, TrainedModel

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.tokenizer import Tokenizer


class TextObjective(Objective):
    """An optional base class of objectives on running text, with the usual default values.

    Each document is cut into pieces of `max_length` - `extra` tokens, where `extra` is the number
    of additional tokens of an example. A last piece shorter than `min_piece` is dropped.
    """

    extra = 0
    min_piece = 1

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the pieces of documents of these `lengths` (D,)."""
        return cut_documents(lengths, self.config.max_length - self.extra, self.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""
        return pieces + self.extra


class LabelTargets(Objective):
    """A base of objectives whose targets are the tokens with a label, in one term on text."""

    term: ClassVar[str]  # the name of the term
    predicts_text = True

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of tokens with a label."""
        return {self.term: int((batch["labels"] != IGNORE).sum())}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the tokens with a label; None in a batch of texts to be scored."""
        labels = batch.fields.get("labels")
        return None if labels is None else labels != IGNORE

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the targets; logits are computed for no other token."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        loss_sum, each = model.token_loss(hidden, index, labels[index])
        parts = self.loss_parts(batch, index, each)
        return Loss({self.term: Term(loss_sum, len(index), parts=parts, of_text=True)})

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> Mapping[str, tuple[torch.Tensor, int]] | None:
        """Return `Term.parts` from the losses `each` (M,) of the targets at rows `index` (M,)."""
        return None


def loss_parts(
    names: Sequence[str], kinds: torch.Tensor, batch: Batch, index: torch.Tensor, each: torch.Tensor
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return sum and number of the targets in sequences of each kind, by name.

    Args:
        kinds: (S,) index in `names` of each sequence.
        index: (K,) rows of the targets in the pack.
        each: (K,) their losses, without gradient.
    """
    import torch

    sizes = torch.tensor(batch.lengths, device=kinds.device)
    of_targets = kinds.repeat_interleave(sizes, output_size=batch.tokens)[index]
    sums = each.new_zeros(len(names)).index_add(0, of_targets, each)
    counts = torch.bincount(of_targets, minlength=len(names)).tolist()
    return {name: (total, count) for name, total, count in zip(names, sums, counts, strict=True)}


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
    return min((limit for _, limit in _limits(model_config)), default=math.inf)


def check_length(max_length: int, model_config: object) -> None:
    """Raise `ValueError` if examples of `max_length` are longer than the model's sequences.

    A family without such a setting accepts sequences of any length.
    """
    for setting, limit in _limits(model_config):
        if max_length > limit:
            raise ValueError(
                f"objective.max_length: {max_length} is more than {setting} {limit}; "
                "lower the one or raise the other"
            )


def _limits(model_config: object) -> Iterator[tuple[str, int]]:
    """Yield the settings that limit a model's sequences, and the limits."""
    settings = (
        ("max_positions", "model.max_positions"),
        ("attention_length", "attention.max_length"),
    )
    for name, setting in settings:
        if (limit := getattr(model_config, name, None)) is not None:
            yield setting, limit
