"""A short way from a batch to its loss."""

from collections.abc import Mapping, Sequence
from typing import Any

from nlpkit.data.pack import Batch
from nlpkit.objectives.contract import Loss, Objective, Term, forward


def loss_of(
    objective: Objective, model: Any, fields: Mapping[str, Any], lengths: Sequence[int]
) -> Loss:
    """Return the loss of a batch of tensors."""
    batch = Batch(dict(fields), tuple(lengths))
    return objective.loss(model, forward(objective, model, batch), batch)


def only_term(loss: Loss) -> Term:
    """Return the term of a loss that has one."""
    (term,) = loss.terms.values()
    return term
