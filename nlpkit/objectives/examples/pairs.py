"""Pairs of texts, `[CLS] A [SEP] B [SEP]`: the common part of `nsp`, `sop`, `tlm` and `unilm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.contracts.batch import MARKS, Field, Loss, Marked, Term
from nlpkit.contracts.objective import ModelSettings
from nlpkit.objectives.examples.frame import Frame, tokens
from nlpkit.objectives.examples.text import TextObjective

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.tokenizer import Extendable


class Pairing(TextObjective):
    """Examples of several texts in the family's frame."""

    inputs: tuple[str, ...] = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "token_type_ids": Field(np.int64),
    }
    needs: tuple[str, ...] = ("bidirectional", "pairs", "scores_pairs")
    min_piece = 2  # a token for each text

    def __init__(self, config: Any, tokenizer: Extendable, model_config: ModelSettings):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        self.frame = Frame(tokenizer, model_config)
        self.template = self.frame.template
        self.extra = self.frame.size(2)

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the family's tokens before, between and after texts."""
        return tokens(model_config)

    def joined(self, texts: Sequence[Marked]) -> dict[str, np.ndarray]:
        """Return the texts as one sequence; those after the first have the token type 1."""
        ids = self.frame.ids([text.ids for text in texts], np.int64)
        marks = np.zeros(len(ids), np.uint8)
        for text, place in zip(texts, self.frame.places([*map(len, texts)]), strict=True):
            marks[place] = text.marks
        return {"input_ids": ids, "token_type_ids": self.frame.types(ids), MARKS: marks}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the two texts of an example."""
        return self.frame.texts(example["input_ids"], 2)


def choice_loss(name: str, logits: torch.Tensor, labels: torch.Tensor) -> Loss:
    """Return cross entropy of the choices (S, K) for the labels (S,); the log has the accuracy."""
    import torch.nn.functional as F

    total, count = F.cross_entropy(logits.float(), labels, reduction="sum"), len(labels)
    right = (logits.argmax(1) == labels).sum().float()
    parts = {name: (total.detach(), count), f"{name}_accuracy": (right, count)}
    return Loss({name: Term(total, count, parts=parts)})


def part(text: Marked, start: int, stop: int) -> Marked:
    """Return the tokens [start, stop) of a text, with their marks."""
    return Marked(text.ids[start:stop], text.marks[start:stop])


def sentence_starts(text: Marked) -> np.ndarray:
    """Return where the sentences of a text begin."""
    return np.flatnonzero(text.has("sentence_start"))
