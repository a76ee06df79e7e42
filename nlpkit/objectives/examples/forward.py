"""The states of a model that an objective's loss reads.

N tokens of a batch, M of them read, C model width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nlpkit.contracts.batch import Batch
from nlpkit.contracts.objective import Objective

if TYPE_CHECKING:
    import torch


def forward(
    objective: Objective,
    model: Callable[..., torch.Tensor],
    batch: Batch,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the model's hidden states (N, C) for the inputs that the objective lists.

    The input `progress` is the completed share of the run, from 0 to 1. States are needed of the
    `rows` (M,), by default of the tokens that the loss reads. Those of other tokens are NaN where
    the model leaves them out, so that a loss that reads them does not go unnoticed.
    """
    given = {**batch.fields, "progress": batch.progress}
    inputs = {name: given[name] for name in objective.inputs}
    method = getattr(model, "forward", None)
    # Not the bound method, which would keep the model.
    if not _takes_rows(getattr(method, "__func__", method)):
        return model(batch.lengths, **inputs)
    rows = _rows_read(objective, batch) if rows is None else rows
    if rows is None:
        return model(batch.lengths, **inputs)
    states = model(batch.lengths, rows=rows, **inputs)
    left_out = states.new_full((sum(batch.lengths), states.shape[1]), math.nan)
    return left_out.index_copy(0, rows, states)


@cache
def _takes_rows(function: Callable[..., torch.Tensor] | None) -> bool:
    """Return whether the `forward` of a model has the argument `rows`."""
    return function is not None and "rows" in inspect.signature(function).parameters


def _rows_read(objective: Objective, batch: Batch) -> torch.Tensor | None:
    """Return the tokens (M,) whose states the loss reads; None: all."""
    read = objective.tokens_read(batch)
    # On a GPU the numbers of rows would have to be waited for.
    if read is None or read.device.type != "cpu":
        return None
    read[np.cumsum((0, *batch.lengths[:-1]))] = True
    rows = read.nonzero().squeeze(1)
    return rows if len(rows) < len(read) else None
