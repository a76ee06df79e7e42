"""Next sentence prediction (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1, task 2).

`[CLS] A [SEP] B [SEP]`: half of the time B follows A in its document (label 0), else it is the
beginning of a piece of another document (label 1), as transformers numbers them.

T tokens of a piece, I pieces, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch


class Config(FrozenConfig):
    """How text is cut into pairs."""

    max_length: int = Setting(512, ge=5, description="longest example, in tokens")


class Objective(TextObjective):
    """Examples and loss of next sentence prediction."""

    parts = ("nsp",)
    inputs = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "token_type_ids": Field(np.int64),
        "next_sentence_label": Field(np.int64, per="sequence"),
    }
    needs = ("bidirectional", "pairs")
    negatives = 1
    extra = 3  # [CLS] and twice [SEP]
    min_piece = 2  # a token for each text

    def __init__(self, config: Config, tokenizer: Any, model_config: Any):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        frame = map(tokenizer.special_id, model_config.task_tokens)
        self.start, self.delimiter, self.end = frame

    @classmethod
    def special_tokens(cls, config: Any, model_config: Any) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return tuple(dict.fromkeys(model_config.task_tokens))

    def example(
        self, ids: np.ndarray, rng: np.random.Generator, negatives: list[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return a pair of T tokens and three special ones, whichever B it has."""
        cut = int(rng.integers(1, len(ids)))
        label = int(rng.integers(2))
        second = ids[cut:]
        if label:
            # Where the other piece is too short, A is longer by what B lacks.
            second = negatives[0][: len(second)]
        first = ids[: len(ids) - len(second)]
        parts = [[self.start], first, [self.delimiter], second, [self.end]]
        sizes = (len(first) + 2, len(second) + 1)
        return {
            "input_ids": np.concatenate(parts).astype(np.int64),
            "token_type_ids": np.repeat(np.arange(2), sizes),
            "next_sentence_label": np.array([label]),
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of sequences."""
        return {"nsp": len(batch["next_sentence_label"])}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the sequences."""
        import torch.nn.functional as F

        labels = batch.fields["next_sentence_label"]
        logits = model.pair_logits(hidden, batch.lengths).float()
        return Loss({"nsp": Term(F.cross_entropy(logits, labels, reduction="sum"), len(labels))})
