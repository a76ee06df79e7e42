"""More rows for a table of embeddings."""

import torch
from torch import Tensor


def more_rows(table: Tensor, rows: int) -> Tensor:
    """Return (rows, C) float32: the rows of `table` (V, C) bit for bit, and new ones behind them.

    A new row is drawn, from torch's current generator, from the normal distribution that has the
    mean and the standard deviation of each column of the old rows, so that a new token is neither
    likelier nor rarer than old ones are on average (Hewitt 2021, "Initializing New Word Embeddings
    for Pretrained Language Models", with the diagonal of the covariance).
    """
    table = table.float()
    mean, deviation = table.mean(0), table.std(0, correction=0)
    new = torch.randn(rows - len(table), table.shape[1], device=table.device)
    return torch.cat([table, mean + deviation * new])
