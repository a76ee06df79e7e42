"""Span corruption with sentinels (T5, Raffel et al. 2020, arXiv:1910.10683, sec. 3.1.4).

The encoder reads the text with each span replaced by a sentinel, the decoder writes each sentinel
with its span. The number of noise tokens and of spans follows from the length, so that the
decoder's length is known before anything is drawn.

T tokens of a piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, Loss, Term
from nlpkit.objectives.examples.text import TextObjective

SENTINELS = tuple(f"<extra_{number}>" for number in range(8))
END = "</s>"
SHARE, MEAN = 0.3, 3


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """A source with holes, and what was in them."""

    parts = ("span",)
    inputs = ("input_ids", "source_ids", "source_lengths")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "labels": Field(np.int64),
        "source_ids": Field(np.int64, per="source"),
    }
    needs = ("encodes_source",)
    predicts_text = True
    min_piece = 4

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.sentinels = np.array([tokenizer.special_id(token) for token in SENTINELS])
        self.end = tokenizer.special_id(END)

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return the sentinels and the end token."""
        return (*SENTINELS, END)

    def length(self, pieces):
        """Return the tokens of both sides: all of the text, two sentinels a span, an end token."""
        _, spans = _sizes(np.asarray(pieces))
        return pieces + 2 * spans + 1

    def example(self, ids, rng):
        """Return source and target."""
        noise, spans = (int(n) for n in _sizes(np.array(len(ids))))
        inside, outside = (_parts(n, spans, rng) for n in (noise, len(ids) - noise))
        cuts = np.cumsum(np.stack([outside, inside], 1).reshape(-1))[:-1]
        pieces = np.split(ids, cuts)
        source, target = [], []
        for number in range(spans):
            sentinel = self.sentinels[number : number + 1]
            source += [pieces[2 * number], self.kept(pieces[2 * number + 1]), sentinel]
            target += [sentinel, self.written(pieces[2 * number + 1])]
        labels = np.concatenate([*target, [self.end]]).astype(np.int64)
        begun = np.concatenate([[self.end], labels[:-1]])
        source_ids = np.concatenate(source).astype(np.int64)
        return {"input_ids": begun, "labels": labels, "source_ids": source_ids}

    def kept(self, span):
        """Return what of a span stays in the source."""
        return span[:0]

    def written(self, span):
        """Return what the decoder writes of a span."""
        return span

    def restore(self, example):
        """Return the text: each sentinel of the source is what follows it in the target."""
        labels = example["labels"]
        starts = np.flatnonzero(np.isin(labels, [*self.sentinels, self.end]))
        spans = {labels[a]: labels[a + 1 : b] for a, b in pairwise(starts)}
        source = example["source_ids"]
        return [np.concatenate([spans.get(i, np.array([i])) for i in source.tolist()])]

    def num_targets(self, batch):
        """Return the tokens of the target."""
        return {"span": len(batch["labels"])}

    def loss(self, model, hidden, batch):
        """Return cross entropy over all of them."""
        import torch

        labels = batch.fields["labels"]
        index = torch.arange(len(labels), device=labels.device)
        total, _ = model.token_loss(hidden, index, labels)
        return Loss({"span": Term(total, len(labels), is_text=True)})


def _sizes(pieces):
    """Return the noise tokens and the spans of pieces of these lengths."""
    noise = np.maximum(1, np.rint(SHARE * pieces)).astype(np.int64)
    return noise, np.clip(np.rint(noise / MEAN).astype(np.int64), 1, len(SENTINELS))


def _parts(total, count, rng):
    """Return `count` sizes of at least 1 that add up to `total`."""
    cuts = 1 + np.sort(rng.choice(total - 1, count - 1, replace=False))
    return np.diff([0, *cuts, total])
