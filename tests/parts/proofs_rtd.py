"""Replaced-token detection without a generator: random words instead of samples (ELECTRA, eq. 2).

A word drawn that is the original one counts as original (Clark et al. 2020, sec. 2).
"""

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
    """`[CLS] piece [SEP]` with a quarter of the tokens replaced, and for each whether it was."""

    parts = ("rtd",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "original": Field(np.int64),
        "replaced": Field(np.float32),
    }
    needs = ("bidirectional",)
    extra = 2
    detects = True

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.start, self.end = map(tokenizer.special_id, ("[CLS]", "[SEP]"))
        # Few words, so that samples often are the original one.
        self.few = np.flatnonzero(tokenizer.token_characters() > 0)[-8:]

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return BERT's."""
        return ("[CLS]", "[SEP]")

    def example(self, ids, rng):
        """Return the piece with some tokens replaced."""
        whole = np.concatenate([[self.start], ids, [self.end]]).astype(np.int64)
        chosen = np.zeros(len(whole), np.bool_)
        chosen[1:-1] = rng.random(len(ids)) < 0.25
        # Half of the samples are right, as a good generator's are.
        right = rng.random(len(whole)) < 0.5
        inputs = np.where(chosen & ~right, rng.choice(self.few, len(whole)), whole)
        labels = self.labels(whole, inputs, chosen).astype(np.float32)
        return {"input_ids": inputs, "original": whole, "replaced": labels}

    def labels(self, whole, inputs, chosen):
        """Return which tokens count as replaced."""
        return inputs != whole

    def unmask(self, example):
        """Return the example with the original tokens."""
        return example | {"input_ids": example["original"]}

    def num_targets(self, batch):
        """Return the tokens."""
        return {"rtd": len(batch["replaced"])}

    def loss(self, model, hidden, batch):
        """Return binary cross entropy over all tokens."""
        import torch.nn.functional as F

        labels = batch.fields["replaced"]
        logits = model.replaced_logits(hidden, batch.lengths).float()
        total = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return Loss({"rtd": Term(total, len(labels))})
