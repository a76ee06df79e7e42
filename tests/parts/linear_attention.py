"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 16-20): no mask, a state.

out_i = phi(q_i) S_i / (phi(q_i) Z_i), S_i = S_(i-1) + phi(k_i) v_i^T, Z_i = Z_(i-1) + phi(k_i),
phi(x) = elu(x) + 1. Token by token, to be read; B sequences, H heads, D width of a head.
"""

import torch
import torch.nn.functional as F

from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
KERNEL = None
FIELDS = ()
OPTIONAL = ()


class Config(FrozenConfig):
    """Linear attention has no settings."""


def tensors(config, heads, head_dim):
    """Return nothing: no tensor is learned."""
    return {}


def pairs(config, lengths):
    """Return a pair a token: the work does not grow with the distance."""
    return float(sum(lengths))


def attend(request, q, k, v, tensors, state):
    """Return (N, H, D); `state` keeps S (B, H, D, D) and Z (B, H, D)."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    sums, norms, outs = [], [], []
    for number, (start, stop) in enumerate(request.layout.spans):
        if state:
            S, Z = state["S"][number], state["Z"][number]
        else:
            S = q.new_zeros(*q.shape[1:], q.shape[2])  # (H, D, D)
            Z = q.new_zeros(q.shape[1:])  # (H, D)
        for i in range(start, stop):
            S = S + torch.einsum("hd,he->hde", k[i], v[i])
            Z = Z + k[i]
            outs.append(torch.einsum("hd,hde->he", q[i], S) / (q[i] * Z).sum(-1, keepdim=True))
        sums.append(S)
        norms.append(Z)
    if state is not None:
        state["S"], state["Z"] = torch.stack(sums), torch.stack(norms)
    return torch.stack(outs)
