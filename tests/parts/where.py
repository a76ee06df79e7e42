"""How many tokens stand before a token: its `labels` are numbers, as it predicts no text."""

from __future__ import annotations

import numpy as np

from nlpkit.contracts.batch import Loss, Term
from nlpkit.objectives import clm
from nlpkit.objectives.clm import Config as Config


class Objective(clm.Objective):
    """Examples of `clm` with positions as labels."""

    parts = ("where",)
    predicts_text = False

    def example(self, ids, rng):
        """Return the inputs and their positions."""
        inputs = super().example(ids, rng)["input_ids"]
        return {"input_ids": inputs, "labels": np.arange(len(inputs))}

    def num_targets(self, batch):
        """Return the tokens."""
        return {"where": len(batch["labels"])}

    def loss(self, model, hidden, batch):
        """Return cross entropy; the logits of the first tokens are those of the positions."""
        import torch.nn.functional as F

        labels = batch.fields["labels"]
        total = F.cross_entropy(model.logits(hidden).float(), labels, reduction="sum")
        return Loss({"where": Term(total, len(labels))})
