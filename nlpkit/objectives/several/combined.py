"""Combines several objectives: the first makes the example, the others alter it or add a term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.contracts.abilities import MEMBERS
from nlpkit.contracts.batch import Batch, Field, Loss
from nlpkit.contracts.objective import Objective, TrainedModel

if TYPE_CHECKING:
    import torch
    from torch import nn


class Combined:
    """A list of objectives; the loss has the terms of all, multiplied by the objective's weight.

    What this class does not define, such as `spans` and `continue_text`, is the first objective's.
    """

    composable = False

    def __init__(self, objectives: Sequence[Objective], weights: Sequence[float]):
        self.first, *self.others = objectives
        self.objectives, self.weights = tuple(objectives), tuple(weights)
        self.fields: dict[str, Field] = {}
        for objective in objectives:
            self.fields |= objective.fields
        self.inputs = joined(objective.inputs for objective in objectives)
        self.needs = joined(objective.needs for objective in objectives)
        self.parts = tuple(name for objective in objectives for name in objective.parts)
        if twice := [name for name in self.parts if self.parts.count(name) > 1]:
            raise ValueError(f"objective: two of the list have a loss called {twice[0]}")
        self.scores = joined(objective.scores for objective in objectives)
        self.token_flags = joined(objective.token_flags for objective in objectives)
        self.predicts_text = any(objective.predicts_text for objective in objectives)
        self.repeats_after = min(objective.repeats_after for objective in objectives)
        # `isinstance` of a protocol does not ask `__getattr__` from Python 3.12 on.
        has = (name for name in MEMBERS if hasattr(self.first, name))
        vars(self).update({name: getattr(self.first, name) for name in has})

    def __getattr__(self, name: str) -> Any:
        # Pickle reads attributes before they are set.
        if name.startswith("__") or "first" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.first, name)

    def example(
        self, ids: np.ndarray, rng: np.random.Generator, *more: Any
    ) -> dict[str, np.ndarray]:
        """Return the example, altered by each objective in turn."""
        example = self.first.example(ids, rng, *more)
        for objective in self.others:
            example = objective.transform(example, rng)
        return example

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        for objective in self.objectives:
            example = objective.at_progress(example, progress)
        return example

    def compute_scores(self, model: TrainedModel) -> dict[str, float | None]:
        return {n: x for each in self.objectives for n, x in each.compute_scores(model).items()}

    def heads(self) -> dict[str, nn.Module]:
        return {n: layer for each in self.objectives for n, layer in each.heads().items()}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for objective in self.objectives:
            counts |= objective.num_targets(batch)
        return counts

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the tokens that any of the objectives reads; None: all of them."""
        read = [objective.tokens_read(batch) for objective in self.objectives]
        known = [each for each in read if each is not None]
        return reduce(or_, known) if len(known) == len(read) else None

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the terms of all objectives, weighted; the text is that of the last that says."""
        terms, text = {}, None
        for objective, weight in zip(self.objectives, self.weights, strict=True):
            loss = objective.loss(model, hidden, batch)
            text = text if loss.text_targets is None else loss.text_targets
            for name, term in loss.terms.items():
                terms[name] = replace(term, weight=term.weight * weight)
        return Loss(terms, text)


def combine(objectives: Sequence[Objective], weights: Sequence[float]) -> Objective:
    """Return the combined objective; a single objective is returned unchanged.

    Raises:
        ValueError: two objectives have a loss of the same name.
    """
    if len(objectives) == 1:
        return objectives[0]
    result: Any = Combined(objectives, weights)  # `__getattr__` gives the other attributes
    return result


def joined(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names of all lists in order, without duplicates."""
    return tuple(dict.fromkeys(name for names in lists for name in names))
