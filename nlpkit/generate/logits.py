"""Chooses tokens from logits: repetition penalty, and sampling with top-k and top-p.

R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_SORTED_FIRST = 256  # tokens for top-p; the complete vocabulary is sorted only if more are needed


def penalize(logits: Tensor, counted: Sequence[np.ndarray], penalty: float) -> Tensor:
    """Return logits (R, V), lower for the tokens `counted` in each row (Keskar et al. 2019, 4.1).

    Positive values are divided by `penalty` and negative ones multiplied, as in transformers.
    """
    rows = np.repeat(np.arange(len(counted)), [len(tokens) for tokens in counted])
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    seen[rows, np.concatenate(counted)] = True
    seen = seen.to(logits.device)
    changed = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, changed, logits)


def draw(
    logits: Tensor,
    uniform: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Return sampled tokens (R,); `uniform` (R,) has a random number in [0, 1) for each row.

    The order is that of transformers: temperature, then the `top_k` most probable tokens, then the
    fewest of them whose total probability reaches `top_p` (Holtzman et al. 2020, sec. 3.1).
    """
    values, tokens = candidates(logits / temperature, top_k, top_p)
    # A float32 sum over a vocabulary would never reach the last tokens.
    edges = values.double().softmax(-1).cumsum(-1)
    indices = torch.searchsorted(edges, (uniform.double() * edges[:, -1])[:, None], right=True)
    # A number on the last edge must not select an excluded token.
    last = (values > -torch.inf).sum(-1, keepdim=True) - 1
    return tokens.gather(1, indices.minimum(last)).squeeze(1)


def candidates(logits: Tensor, top_k: int | None, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Return logits (R, K) and tokens (R, K), most probable first; -inf for excluded tokens."""
    size = logits.shape[-1]
    if top_p is None or top_p == 1:
        return logits.topk(min(top_k or size, size))
    if top_k is not None:
        values, tokens = logits.topk(min(top_k, size))
        return _keep_nucleus(values, values.logsumexp(-1, keepdim=True), top_p), tokens
    total = logits.logsumexp(-1, keepdim=True)
    values, tokens = logits.topk(min(_SORTED_FIRST, size))
    if bool(((values - total).exp().sum(-1) < top_p).any()):
        values, tokens = logits.sort(descending=True)
    return _keep_nucleus(values, total, top_p), tokens


def _keep_nucleus(values: Tensor, total: Tensor, top_p: float) -> Tensor:
    """Return sorted `values` with -inf after the first whose cumulative share reaches `top_p`."""
    share = (values - total).exp()
    before = share.cumsum(-1) - share
    before[:, 0] = 0  # the most probable token is always kept
    return values.masked_fill(before >= top_p, -torch.inf)
