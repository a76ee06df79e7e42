"""Tokens in another order: for each its place in the text is predicted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.objectives.contract import Field, Loss, Term, TextObjective


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """A piece whose tokens are shuffled."""

    parts = ("reorder",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "place": Field(np.int64)}
    needs = ("bidirectional",)

    def example(self, ids, rng):
        """Return the tokens in a random order, and the place of each in the text."""
        order = self.order(len(ids), rng)
        return {"input_ids": ids[order].astype(np.int64), "place": order}

    def order(self, size, rng):
        """Return a random order."""
        return rng.permutation(size)

    def restore(self, example):
        """Return the text."""
        return [example["input_ids"][np.argsort(example["place"])]]

    def num_targets(self, batch):
        """Return the tokens."""
        return {"reorder": len(batch["place"])}

    def loss(self, model, hidden, batch):
        """Return cross entropy over all tokens."""
        import torch.nn.functional as F

        places = batch.fields["place"]
        total = F.cross_entropy(model.place_logits(hidden).float(), places, reduction="sum")
        return Loss({"reorder": Term(total, len(places))})
