"""Several objectives as one: the first makes the example, the others alter it or add a term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nlpkit.objectives.contract import Field, Joining, Loss, Objective, Spans, TrainedModel

if TYPE_CHECKING:
    import numpy as np

    from nlpkit.data.pack import Batch


class Combined:
    """A list of objectives; the loss has the terms of all, each with its objective's weight.

    What is not said here is as the first objective has it, such as how text is continued.
    """

    joins = False

    def __init__(self, objectives: Sequence[Objective], weights: Sequence[float]):
        """Join bound objectives.

        Raises:
            ValueError: two have a term of the same name.
        """
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
        self.marks = joined(objective.marks for objective in objectives)
        self.mates = self.first.mates
        self.predicts_text = any(objective.predicts_text for objective in objectives)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "first" not in self.__dict__:  # asked while it is unpickled
            raise AttributeError(name)
        return getattr(self.first, name)

    def special_tokens(self, model_config: Any) -> tuple[str, ...]:
        """Return what all objectives want in the vocabulary."""
        return joined(objective.special_tokens(model_config) for objective in self.objectives)

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the spans of the objective that makes the examples."""
        return self.first.spans(lengths)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of its examples, which the others do not change."""
        return self.first.length(pieces)

    def example(
        self, ids: np.ndarray, rng: np.random.Generator, *more: Any
    ) -> dict[str, np.ndarray]:
        """Return the example, altered by each objective in turn."""
        made = self.first.example(ids, rng, *more)
        for objective in self.others:
            assert isinstance(objective, Joining)
            made = objective.alter(made, rng)
        return made

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the targets of each term of each objective."""
        found: dict[str, int] = {}
        for objective in self.objectives:
            found |= objective.num_targets(batch)
        return found

    def loss(self, model: TrainedModel, hidden: Any, batch: Batch) -> Loss:
        """Return the terms of all objectives, weighted."""
        terms = {}
        for objective, weight in zip(self.objectives, self.weights, strict=True):
            for name, term in objective.loss(model, hidden, batch).terms.items():
                terms[name] = replace(term, weight=term.weight * weight)
        return Loss(terms)


def combined(objectives: Sequence[Objective], weights: Sequence[float]) -> Any:
    """Return the objectives as one; an only one as it is.

    Raises:
        ValueError: two have a term of the same name.
    """
    if len(objectives) == 1:
        return objectives[0]
    return Combined(objectives, weights)


def joined(lists: Any) -> tuple[str, ...]:
    """Return the names of all lists, each once, in order."""
    return tuple(dict.fromkeys(name for names in lists for name in names))
