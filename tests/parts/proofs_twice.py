"""Masked language modelling whose held-out loss reads the text once more, beside each masked one.

The second run has twice as many tokens as the pack; its loss is a figure for the log.
"""

from __future__ import annotations

from dataclasses import replace

from nlpkit.contracts.batch import IGNORE, Loss
from tests.parts import proofs_mlm
from tests.parts.proofs_mlm import Config as Config


class Objective(proofs_mlm.Objective):
    """`mlm`, and what it loses where the masked text follows another copy of the pack."""

    parts = ("mlm", "again")

    def loss(self, model, hidden, batch):
        """Return the loss of the masked text; held out with the figure of the second run."""
        import torch

        loss = super().loss(model, hidden, batch)
        if torch.is_grad_enabled():
            return loss
        labels, ids = batch.fields["labels"], batch.fields["input_ids"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        again = torch.cat([ids, self.second(ids, labels)])
        states = model([*batch.lengths, *batch.lengths], input_ids=again)
        total, _ = model.token_loss(states, len(ids) + index, labels[index])
        parts = loss.parts | {"again": (total, len(index))}
        return Loss({"mlm": replace(loss.terms["mlm"], parts=parts)})

    def second(self, ids, labels):
        """Return the tokens (N,) that the second run reads."""
        return ids
