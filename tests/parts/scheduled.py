"""Causal language modelling whose loss falls in weight with the progress of the run.

At its begin the weight is 1, at its end 1 - `fall`, and between it falls in a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field as Setting

from nlpkit.contracts.batch import Loss
from nlpkit.objectives import clm

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch


class Config(clm.Config):
    """As of `clm`, and how far the weight falls."""

    fall: float = Setting(0.5, ge=0, le=1, description="what the weight loses until the end")


class Objective(clm.Objective):
    """Examples of `clm`, and its loss with a weight."""

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over all tokens, weighted."""
        loss = super().loss(model, hidden, batch)
        loss.terms["clm"].weight = 1 - self.config.fall * batch.progress
        return loss
