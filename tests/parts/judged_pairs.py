"""Minimal pairs as a part from outside: in a list, it adds a score to each evaluation of a run.

It changes no example and adds no term to the loss.
"""

from __future__ import annotations

from types import MappingProxyType

from nlpkit.config import FrozenConfig
from nlpkit.contracts import objective
from nlpkit.contracts.batch import Loss


class Config(FrozenConfig):
    """The pairs: an acceptable text, then an unacceptable one."""

    pairs: list[list[str]]


class Objective(objective.Objective):
    """The share of the pairs whose acceptable text has the higher probability."""

    fields = MappingProxyType({})
    inputs = ()
    parts = ()
    scores = ("pairs",)
    composable = True

    def spans(self, lengths):
        """Not asked: the first objective of the list makes the examples."""
        raise NotImplementedError

    length = example = spans

    def num_targets(self, batch):
        """Return no targets."""
        return {}

    def loss(self, model, hidden, batch):
        """Return no terms."""
        return Loss({})

    def compute_scores(self, model):
        """Return the score."""
        right = [
            self._loss(model, good) < self._loss(model, bad) for good, bad in self.config.pairs
        ]
        return {"pairs": sum(right) / len(right)}

    def _loss(self, model, text):
        import torch

        ids = torch.tensor(self.tokenizer.encode(text))
        hidden = model((len(ids) - 1,), input_ids=ids[:-1])
        return float(model.token_loss(hidden, torch.arange(len(ids) - 1), ids[1:])[0])
