"""Tables of the vocabulary in a state dict: how many tokens they have, and entries for more.

V tokens, C columns. A family names its tables: `VOCABULARY`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def vocabulary_size(state: Mapping[str, Tensor], tables: Sequence[str]) -> int:
    """Return the tokens that the tables have; 0 where there is none of them."""
    return next((len(state[name]) for name in tables if name in state), 0)


def resize_embeddings(
    state: Mapping[str, Tensor], tables: Sequence[str], vocab_size: int
) -> dict[str, Tensor]:
    """Return a state dict for `vocab_size` tokens: longer tables, the rest as it is.

    The tables become float32. What one holds already stays bit for bit; new entries stand behind.
    """
    longer = {name: _longer(state[name], vocab_size) for name in tables if name in state}
    return {**state, **longer}


def _longer(table: Tensor, entries: int) -> Tensor:
    """Return (entries, C) of a table (V, C), or (entries,) of a bias (V,).

    A new row is drawn, from torch's current generator, from the normal distribution that has the
    mean and the standard deviation of each column of the old rows, so that a new token is neither
    likelier nor rarer than old ones are on average (Hewitt 2021, "Initializing New Word Embeddings
    for Pretrained Language Models", with the diagonal of the covariance). For the same reason a
    new entry of a bias is the mean of the old ones.
    """
    table = table.float()
    mean, more = table.mean(0), entries - len(table)
    if table.ndim == 1:
        return torch.cat([table, mean.expand(more)])
    deviation = table.std(0, correction=0)
    new = torch.randn(more, table.shape[1], device=table.device)
    return torch.cat([table, mean + deviation * new])
