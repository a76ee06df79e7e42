"""Pairs of texts, `[CLS] A [SEP] B [SEP]`: the common part of `nsp`, `sop`, `tlm` and `unilm`.

N tokens of a batch, S sequences, K labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nlpkit.contracts.batch import TOKEN_FLAGS, Batch, FlaggedIds, Loss, Term
from nlpkit.objectives.examples.frame import FramedText

if TYPE_CHECKING:
    import torch


class Pairing(FramedText):
    """Examples of several texts in the family's frame."""

    needs: tuple[str, ...] = ("bidirectional", "pairs", "scores_pairs")
    num_texts = 2
    min_piece = 2  # a token for each text

    def joined(self, texts: Sequence[FlaggedIds]) -> dict[str, np.ndarray]:
        """Return the texts as one sequence; those after the first have the token type 1."""
        ids = self.frame.ids([text.ids for text in texts], np.int64)
        flags = np.zeros(len(ids), np.uint8)
        for text, place in zip(texts, self.frame.places([*map(len, texts)]), strict=True):
            flags[place] = text.token_flags
        return {"input_ids": ids, "token_type_ids": self.frame.types(ids), TOKEN_FLAGS: flags}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self.frame.texts(example["input_ids"], 2)


class PairChoice(Pairing):
    """Pairs with a label, which the summary of their sequence predicts."""

    label: ClassVar[str]  # the field of the label

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {self.parts[0]: len(batch[self.label])}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: no token but the first of each sequence."""
        return batch.fields["input_ids"].new_zeros(sum(batch.lengths)).bool()

    def logits(self, model: Any, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the scores (S, K) of the labels."""
        return model.pair_logits(hidden, batch.lengths)

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the sequences, and the accuracy for the log."""
        import torch.nn.functional as F

        labels, logits = batch.fields[self.label], self.logits(model, hidden, batch)
        total, count = F.cross_entropy(logits.float(), labels, reduction="sum"), len(labels)
        right = (logits.argmax(1) == labels).sum().float()
        name, accuracy = self.parts
        parts = {name: (total.detach(), count), accuracy: (right, count)}
        return Loss({name: Term(total, count, parts=parts)})


def part(text: FlaggedIds, start: int, stop: int) -> FlaggedIds:
    """Return the tokens [start, stop) of a text, with their flags."""
    return FlaggedIds(text.ids[start:stop], text.token_flags[start:stop])


def sentence_starts(text: FlaggedIds) -> np.ndarray:
    """Return where the sentences of a text begin."""
    return np.flatnonzero(text.has("sentence_start"))
