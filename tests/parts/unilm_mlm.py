"""UniLM's cloze: masked tokens, predicted from what one of its four masks shows.

Dong et al. 2019, arXiv:1905.03197, sec. 2.3. `[CLS] A [SEP] B [SEP]`, cut anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

FRAME = ("[CLS]", "[SEP]", "[MASK]")


class Config(FrozenConfig):
    """How text is cut, and which tokens a masked one sees."""

    max_length: int = 48
    sees: Literal["both", "left", "right", "source"] = "both"


class Objective(TextObjective):
    """A third of the tokens are [MASK]."""

    parts = ("unilm",)
    inputs = ("input_ids", "first", "last")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "first": Field(np.int64),
        "last": Field(np.int64),
        "labels": Field(np.int64),
    }
    needs = ("has_vocabulary",)
    predicts_text = True
    extra = 3
    min_piece = 4

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.start, self.end, self.mask = map(tokenizer.special_id, FRAME)

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return BERT's."""
        return FRAME

    def example(self, ids, rng):
        """Return two texts, masked, and the range of places that each token sees."""
        cut = int(rng.integers(1, len(ids)))
        parts = [[self.start], ids[:cut], [self.end], ids[cut:], [self.end]]
        whole = np.concatenate(parts).astype(np.int64)
        here, size = np.arange(len(whole)), len(whole)
        first, last = np.zeros(size, np.int64), np.full(size, size - 1)
        if self.config.sees == "left":
            last = here
        elif self.config.sees == "right":
            first = here
        elif self.config.sees == "source":
            last = np.maximum(here, cut + 1)
        words = np.setdiff1d(here, [0, cut + 1, size - 1])
        chosen = rng.choice(words, max(1, len(words) // 3), replace=False)
        labels = np.full(size, IGNORE)
        labels[chosen] = whole[chosen]
        whole[chosen] = self.mask
        return {"input_ids": whole, "first": first, "last": last, "labels": labels}

    def restore(self, example):
        """Return both texts as one."""
        ids = example["input_ids"]
        return [ids[~np.isin(ids, [self.start, self.end])]]

    def num_targets(self, batch):
        """Return the masked tokens."""
        return {"unilm": int((batch["labels"] != IGNORE).sum())}

    def loss(self, model, hidden, batch):
        """Return cross entropy over them."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        total, _ = model.token_loss(hidden, index, labels[index])
        return Loss({"unilm": Term(total, len(index), is_text=True)})
