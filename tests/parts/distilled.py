"""Causal language modelling towards the distribution of a teacher (Hinton et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field as Setting

from nlpkit.objectives import clm

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch, Loss


class Config(clm.Config):
    """As of `clm`, and the teacher."""

    teacher: str = Setting(description="checkpoint of the teacher, or its run")


class Objective(clm.Objective):
    """Examples of `clm`; the loss is the cross entropy with the teacher's distribution."""

    @staticmethod
    def frozen(config: Config) -> Mapping[str, str]:
        """Return the teacher."""
        return {"teacher": config.teacher}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over all tokens."""
        import torch

        loss = super().loss(model, hidden, batch)
        teacher = self.frozen_models["teacher"]
        with torch.no_grad():
            states = teacher(batch.lengths, input_ids=batch.fields["input_ids"])
            wanted = teacher.logits(states).softmax(1)
        total = -(wanted * model.logits(hidden).log_softmax(1)).sum()
        term = replace(loss.terms["clm"], loss_sum=total, parts=None)
        return replace(loss, terms={"clm": term})
