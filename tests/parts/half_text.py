"""Next tokens, where half of the `labels` are of a term that is not of text (see `Loss`)."""

from __future__ import annotations

from nlpkit.contracts.batch import Loss, Term
from nlpkit.objectives import clm


class Config(clm.Config):
    """How text is cut, and whether the loss says which labels are text."""

    says: bool = True


class Objective(clm.Objective):
    """The labels with an even index are text, the others belong to a second term."""

    parts = ("text", "other")

    def num_targets(self, batch):
        """Return the numbers of both kinds of labels."""
        count = len(batch["labels"])
        return {"text": (count + 1) // 2, "other": count // 2}

    def loss(self, model, hidden, batch):
        """Return a cross entropy over each kind."""
        import torch

        labels = batch.fields["labels"]
        index = torch.arange(len(labels), device=labels.device)
        text, other = (model.token_loss(hidden, i, labels[i])[0] for i in (index[::2], index[1::2]))
        terms = {
            "text": Term(text, len(index[::2]), is_text=True),
            "other": Term(other, len(index[1::2]), 0.5),
        }
        return Loss(terms, labels[::2] if self.config.says else None)
