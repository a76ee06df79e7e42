"""Rows of the vocabulary tables in a state dict for new tokens.

V tokens, C columns. `VOCABULARY` of a family lists its tables.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def resize_embeddings(
    state: Mapping[str, Tensor], tables: Sequence[str], vocab_size: int
) -> dict[str, Tensor]:
    """Return a state dict for `vocab_size` tokens: only the tables change.

    The tables become float32. Their old rows keep their values; new rows follow them.
    """
    longer = {name: _lengthen(state[name], vocab_size) for name in tables if name in state}
    return {**state, **longer}


def drop_padding(
    state: Mapping[str, Tensor], tables: Sequence[str], vocab_size: int
) -> dict[str, Tensor]:
    """Return a state dict whose tables have no rows after `vocab_size` tokens."""
    cut = {name: state[name][:vocab_size].clone() for name in tables if name in state}
    return {**state, **cut}


def _lengthen(table: Tensor, entries: int) -> Tensor:
    """Return (entries, C) of a table (V, C), or (entries,) of a bias (V,).

    New rows are drawn with torch's current generator from a normal distribution with the mean and
    the standard deviation of each column of the old rows, so that a new token is on average about
    as probable as an old one (Hewitt 2021, "Initializing New Word Embeddings for Pretrained
    Language Models", with the diagonal of the covariance). A new entry of a bias is the mean of the
    old entries, for the same reason.
    """
    table = table.float()
    mean, more = table.mean(0), entries - len(table)
    if table.ndim == 1:
        return torch.cat([table, mean.expand(more)])
    deviation = table.std(0, correction=0)
    new = torch.randn(more, table.shape[1], device=table.device)
    return torch.cat([table, mean + deviation * new])
