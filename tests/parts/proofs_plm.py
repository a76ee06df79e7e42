"""Permutation language modelling with two streams (XLNet, Yang et al. 2019, arXiv:1906.08237).

An order is drawn for the tokens of each piece; the last sixth of it is predicted, each token from
its place and from the tokens before it in the order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlpkit.config import FrozenConfig
from nlpkit.objectives.contract import IGNORE, Field, Loss, Term, TextObjective


class Config(FrozenConfig):
    """How text is cut."""

    max_length: int = 48


class Objective(TextObjective):
    """A piece, the rank of each token in the order, and the tokens to predict."""

    parts = ("plm",)
    inputs = ("input_ids", "rank")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "rank": Field(np.int64),
        "labels": Field(np.int64),
    }
    predicts_text = True

    def example(self, ids, rng):
        """Return the text itself: what is hidden is hidden by the model's two streams."""
        rank = rng.permutation(len(ids))
        is_last = rank >= len(ids) - max(1, len(ids) // 6)
        whole = ids.astype(np.int64)
        labels = np.where(is_last, whole, IGNORE)
        return {"input_ids": whole, "rank": rank, "labels": labels}

    def num_targets(self, batch):
        """Return the predicted tokens."""
        return {"plm": int((batch["labels"] != IGNORE).sum())}

    def loss(self, model, hidden, batch):
        """Return cross entropy of the query stream."""
        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        total, _ = model.token_loss(hidden, index, labels[index])
        return Loss({"plm": Term(total, len(index), of_text=True)})
