"""Masked language modelling, 80/10/10, which says what selftest asks (Devlin et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

MASK = "[MASK]"


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """`[CLS] piece [SEP]` with a third of the tokens hidden; behind another, its example's."""

    parts = ("mlm",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "labels": Field(np.int64)}
    needs = ("bidirectional",)
    predicts_text = True
    composable = True
    extra = 2
    shown_rate = 0.2
    hidden = 0.8  # share of the targets; half of the others show a random word

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.start, self.end, self.mask = map(tokenizer.special_id, ("[CLS]", "[SEP]", MASK))
        self.is_word = tokenizer.token_characters() > 0
        self.is_word[[self.start, self.end, self.mask]] = False
        self.words = np.flatnonzero(self.is_word)

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return BERT's."""
        return ("[CLS]", "[SEP]", MASK)

    def example(self, ids, rng):
        """Return the piece between its special tokens, masked."""
        framed = np.concatenate([[self.start], ids, [self.end]]).astype(np.int64)
        return self.transform({"input_ids": framed}, rng)

    def transform(self, example, rng):
        """Return the example with tokens hidden, and `labels`."""
        ids = example["input_ids"].copy()
        words = np.flatnonzero(self.is_word[ids])
        chosen = rng.choice(words, max(1, len(words) // 3), replace=False)
        labels = np.full_like(ids, IGNORE)
        labels[chosen] = ids[chosen]
        fate = rng.random(len(chosen))
        drawn = rng.choice(self.words, len(chosen))
        ids[chosen] = np.select(
            [fate < self.hidden, fate < (1 + self.hidden) / 2], [self.mask, drawn], ids[chosen]
        )
        return example | {"input_ids": ids, "labels": labels}

    def shown(self, example):
        """Return the targets that are not [MASK]."""
        return (example["labels"] != IGNORE) & (example["input_ids"] != self.mask)

    def num_targets(self, batch):
        """Return the hidden tokens."""
        return {"mlm": int((batch["labels"] != IGNORE).sum())}

    def loss(self, model, hidden, batch):
        """Return cross entropy over them."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        total, _ = model.token_loss(hidden, index, labels[index])
        return Loss({"mlm": Term(total, len(index), is_text=True)})
