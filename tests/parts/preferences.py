"""Preferences between two answers, without a reference model, as in SimPO (Meng et al. 2024).

arXiv:2405.14734, eq. 6. An item is a question with the right and a wrong answer; the loss compares
the mean log-probabilities of both, which one call of the head gives.
"""

from __future__ import annotations

import numpy as np

from nlpkit.contracts.batch import IGNORE, LENGTHS, Loss, Term
from nlpkit.contracts.task import Item
from nlpkit.objectives import generation

BETA, MARGIN = 2.0, 0.5


class Config(generation.Config):
    """The columns of `generation`, and that of the wrong answer."""

    wrong: str = "wrong"


class Objective(generation.Objective):
    """`generation` that prefers the target to the wrong answer."""

    @classmethod
    def named_columns(cls, config):
        """Return the columns of the question and of both answers."""
        return (*super().named_columns(config), config.wrong)

    def texts(self, row):
        """Return the question and both answers."""
        return (*super().texts(row), row.text(self.config.wrong))

    def item(self, row, ids):
        """Return the question with each answer."""
        question, right, wrong = ids
        made = [super(Objective, self).item(row, [question, each]) for each in (right, wrong)]
        return Item(tuple(made), made[0].label, sum(each.size for each in made))

    def unknown(self, item):
        """Return the number of unknown tokens in both."""
        return sum(super(Objective, self).unknown(each) for each in item.parts)

    def unlearned(self, item):
        """Return the number of unknown tokens in both answers."""
        return sum(super(Objective, self).unlearned(each) for each in item.parts)

    def example(self, item, rng):
        """Return both sequences, the right one first."""
        made = [super(Objective, self).example(each, rng) for each in item.parts]
        joined = {name: np.concatenate([each[name] for each in made]) for name in made[0]}
        return joined | {LENGTHS: np.array([len(each["labels"]) for each in made])}

    def num_targets(self, batch):
        """Return the number of pairs."""
        return {"generation": len(batch[LENGTHS]) // 2}

    def loss(self, model, hidden, batch):
        """Return -log sigmoid of how much likelier the right answer is, less the margin."""
        import torch
        import torch.nn.functional as F

        labels = batch.fields["labels"]
        index = (labels != IGNORE).nonzero().squeeze(1)
        losses = model.token_losses(hidden, index, labels[index])
        sequence = torch.arange(len(batch.lengths)).repeat_interleave(torch.tensor(batch.lengths))
        sums = losses.new_zeros(len(batch.lengths)).index_add(0, sequence[index], losses)
        means = sums / torch.bincount(sequence[index], minlength=len(sums))
        right, wrong = means[::2], means[1::2]
        total = -F.logsigmoid(BETA * (wrong - right) - MARGIN).sum()
        return Loss({"generation": Term(total, len(right))})
