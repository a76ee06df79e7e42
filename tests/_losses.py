"""A short way from a batch to its loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nlpkit.contracts.batch import Batch, Loss, Term
from nlpkit.contracts.objective import Objective
from nlpkit.objectives.examples.text import forward


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


def all_states(objective: Objective, model: Any, batch: Batch) -> torch.Tensor:
    """Return the hidden states (N, C) of all tokens, also of those that the loss does not read."""
    return model(batch.lengths, **{name: batch.fields[name] for name in objective.inputs})
