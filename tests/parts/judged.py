"""Causal language modelling that also says how many tokens were predicted right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nlpkit.objectives import clm

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch, Loss

Config = clm.Config


class Objective(clm.Objective):
    """Examples and loss of `clm`, and the share of right tokens as a score."""

    parts = ("clm", "right")
    scores = ("right",)

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of `clm`, with the number of right tokens and of all."""
        loss = super().loss(model, hidden, batch)
        labels = batch.fields["labels"]
        right = (model.logits(hidden).detach().argmax(1) == labels).sum().float()
        term = loss.terms["clm"]
        parts = {**(term.parts or {}), "right": (right, len(labels))}
        return replace(loss, terms={"clm": replace(term, parts=parts)})
