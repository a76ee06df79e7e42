"""Draws tokens from the distribution of a vocabulary projection, one chunk of rows at a time.

M rows, M' rows of a chunk, C width of the states, V vocabulary.
"""

import torch
from torch import Tensor

CHUNK = 256  # rows per chunk; probabilities in float64: 256 x 30,000 x 8 bytes = 60 MB


@torch.no_grad()
def sample(
    states: Tensor,
    weight: Tensor,
    uniform: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return a token (M,) int64 for each row, drawn from the softmax of its logits; no gradient.

    The logits are `states @ weight.T + bias`, divided by `temperature`. A token is the inverse of
    the cumulative distribution at a number of `uniform`, so that the same numbers give the same
    tokens in every pack and process, but for rounding.

    Args:
        states: (M, C), in the compute type.
        weight: (V, C).
        uniform: (M,), from 0 to 1.
        bias: (V,), added to the logits of every row.
    """
    compute = weight.to(states.dtype)
    tokens = torch.empty(len(states), dtype=torch.long, device=states.device)
    for start in range(0, len(states), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = (states[rows] @ compute.T).double()  # (M', V)
        if bias is not None:
            logits += bias
        below = (logits / temperature).softmax(1).cumsum(1)
        # The last sum may differ from 1 by rounding.
        wanted = uniform[rows, None].double() * below[:, -1:]
        tokens[rows] = torch.searchsorted(below, wanted, right=True).squeeze(1)
    return tokens.clamp_(max=len(weight) - 1)
