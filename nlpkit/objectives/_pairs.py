"""Pairs of texts `[CLS] A [SEP] B [SEP]`: the common part of `nsp`, `sop` and `tlm`.

T tokens of an example, S sequences, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.data.marks import Marked
from nlpkit.data.pack import MARKS
from nlpkit.objectives._masking import special_ids
from nlpkit.objectives.contract import Field, Loss, ModelSettings, Term, TextObjective

if TYPE_CHECKING:
    import torch

    from nlpkit.tokenizers.contract import Extendable


class Pairing(TextObjective):
    """Examples of several texts, each followed by a special token."""

    inputs: tuple[str, ...] = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "token_type_ids": Field(np.int64),
    }
    needs: tuple[str, ...] = ("bidirectional", "pairs", "scores_pairs")
    extra = 3  # [CLS] and twice [SEP]
    min_piece = 2  # a token for each text

    def __init__(self, config: Any, tokenizer: Extendable, model_config: ModelSettings):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        self.start, self.delimiter, self.end = special_ids(tokenizer, model_config.task_tokens)

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the family's tokens before, between and after texts."""
        return tuple(dict.fromkeys(model_config.task_tokens))

    def joined(self, texts: Sequence[Marked]) -> dict[str, np.ndarray]:
        """Return the texts as one sequence; those after the first have the token type 1."""
        sizes = np.array([len(text) for text in texts]) + 1
        sizes[0] += 1
        ids = np.empty(int(sizes.sum()), np.int64)
        marks = np.zeros(len(ids), np.uint8)
        ids[0], at = self.start, 1
        for text in texts:
            stop = at + len(text)
            ids[at:stop], marks[at:stop] = text.ids, text.marks
            ids[stop], at = self.delimiter, stop + 1
        ids[-1] = self.end
        types = np.ones(len(ids), np.int64)
        types[: sizes[0]] = 0
        return {"input_ids": ids, "token_type_ids": types, MARKS: marks}

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the two texts of an example."""
        ids, first = example["input_ids"], int((example["token_type_ids"] == 0).sum())
        return [ids[1 : first - 1], ids[first:-1]]


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
