"""Replaced-token detection with a generator inside the loss (ELECTRA, Clark et al. 2020, sec. 2).

The generator is the model on the masked text; its samples are what the same model then judges.
A sample is drawn by a number that the example brings, so that a pack, and a resumed run, has the
same samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

FRAME = ("[CLS]", "[SEP]", "[MASK]")


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """`[CLS] piece [SEP]` with a third of the tokens masked."""

    parts = ("mlm", "rtd")
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "labels": Field(np.int64),
        "uniform": Field(np.float32),
    }
    needs = ("bidirectional",)
    predicts_text = True
    extra = 2
    detects = True

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.start, self.end, self.mask = map(tokenizer.special_id, FRAME)

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return BERT's."""
        return FRAME

    def example(self, ids, rng):
        """Return the piece with some tokens masked, and a number to draw a sample by."""
        whole = np.concatenate([[self.start], ids, [self.end]]).astype(np.int64)
        chosen = 1 + rng.choice(len(ids), max(1, len(ids) // 3), replace=False)
        labels = np.full(len(whole), IGNORE)
        labels[chosen] = whole[chosen]
        uniform = rng.random(len(whole)).astype(np.float32)
        return {"input_ids": self.hidden(whole, chosen), "labels": labels, "uniform": uniform}

    def hidden(self, whole, chosen):
        """Return the text with [MASK] in the places that are chosen."""
        masked = whole.copy()
        masked[chosen] = self.mask
        return masked

    def unmask(self, example):
        """Return the example with the original tokens."""
        labels = example["labels"]
        return example | {"input_ids": np.where(labels < 0, example["input_ids"], labels)}

    def num_targets(self, batch):
        """Return the masked tokens, and all tokens."""
        return {"mlm": int((batch["labels"] != IGNORE).sum()), "rtd": len(batch["labels"])}

    def loss(self, model, hidden, batch):
        """Return the generator's cross entropy, and the binary one over all tokens."""
        import torch
        import torch.nn.functional as F

        labels, ids = batch.fields["labels"], batch.fields["input_ids"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        total, _ = model.token_loss(hidden, index, labels[index])
        with torch.no_grad():
            chances = model.logits(hidden[index]).float().softmax(1).cumsum(1)
            drawn = torch.searchsorted(chances, self.numbers(batch)[index, None]).squeeze(1)
        sampled = ids.clone()
        sampled[index] = drawn.clamp(max=chances.shape[1] - 1)
        original = torch.where(labels < 0, ids, labels)
        is_replaced = self.replaced(sampled, original, labels)
        states = model(batch.lengths, input_ids=self.judged(sampled, original))
        logits = model.replaced_logits(states, batch.lengths).float()
        second = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        return Loss(
            {"mlm": Term(total, len(index), is_text=True), "rtd": Term(second, len(labels))}
        )

    def numbers(self, batch):
        """Return the numbers (N,) from 0 to 1 that samples are drawn by."""
        return batch.fields["uniform"]

    def replaced(self, sampled, original, labels):
        """Return which tokens are replaced: a sample that is right is not."""
        return sampled != original

    def judged(self, sampled, original):
        """Return the tokens that the discriminator reads."""
        return sampled
