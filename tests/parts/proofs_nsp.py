"""Next sentence prediction: does the second text follow the first (Devlin et al. 2018)?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """`[CLS] A [SEP] B [SEP]`: B is what follows A, or (label 1) the beginning of a negative."""

    parts = ("nsp",)
    inputs = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "token_type_ids": Field(np.int64),
        "pair": Field(np.int64, per="sequence"),
    }
    needs = ("bidirectional", "pairs")
    negatives = 1
    extra = 3
    min_piece = 8

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.start, self.end = map(tokenizer.special_id, ("[CLS]", "[SEP]"))

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return BERT's."""
        return ("[CLS]", "[SEP]")

    def example(self, ids, rng, negatives):
        """Return a pair."""
        label, cut = int(rng.integers(2)), int(rng.integers(2, len(ids) - 2))
        second = self.second(ids, cut, negatives[0]) if label else ids[cut:]
        first = ids[: len(ids) - len(second)]
        parts = [[self.start], first, [self.end], second, [self.end]]
        return {
            "input_ids": np.concatenate(parts).astype(np.int64),
            "token_type_ids": np.repeat(np.arange(2), (len(first) + 2, len(second) + 1)),
            "pair": np.array(label),
        }

    def second(self, ids, cut, negative):
        """Return a text that does not follow `ids[:cut]`."""
        return negative[: len(ids) - cut]

    def num_targets(self, batch):
        """Return the sequences."""
        return {"nsp": len(batch["pair"])}

    def loss(self, model, hidden, batch):
        """Return cross entropy over them."""
        import torch.nn.functional as F

        logits = model.pair_logits(hidden, batch.lengths).float()
        labels = batch.fields["pair"]
        return Loss({"nsp": Term(F.cross_entropy(logits, labels, reduction="sum"), len(labels))})
