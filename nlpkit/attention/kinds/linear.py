"""Linear attention: the weights are products of features, so that sums replace the matrix.

Katharopoulos et al. 2020, arXiv:2006.16236: phi(x) = elu(x) + 1 (eq. 7), the weight of key j for
query i is phi(q_i) phi(k_j), over the sum of the weights of all keys that i sees (eq. 4 and 8).
Time and memory grow with the tokens alone; a model that writes keeps the sums S and Z (eq. 18-20),
whose size does not grow. Products and sums are in float32.
"""

from nlpkit.attention.kinds import _either

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
CROSS = False
COST = "N"
visibility = _either.visibility
mask = _either.mask
_LEAST = 1e-30  # of a sum of weights: features far below 0 are 0 in float32


class Config(_either.EitherConfig):
    """Linear attention has no settings of its own."""


def tensors(config, heads, head_dim):
    """Return an empty dict: this kind learns no tensors."""
    return {}


def pairs(config, lengths):
    """Return the work of a token as that of 64 pairs, which is right for heads of width 64.

    The sums take D times D products, twice; a pair takes D of them, twice.
    """
    return 64.0 * sum(lengths)


def reference(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the matrix of all weights."""
    import torch
    import torch.nn.functional as F

    weights = torch.einsum("ihd,jhd->hij", F.elu(q) + 1, F.elu(k) + 1)
    if _either.is_causal(config):
        weights = weights.tril()
    return torch.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdim=True), v)


def prepared(request):
    """Return the chunks of the pack where they are needed."""
    from nlpkit.attention import linear_form

    causal = _either.is_causal(request.config)
    return linear_form.chunks_of(request) if causal else None


def attend(request, q, k, v, tensors, state):
    """Return (N, H, D); `state` is S (B, H, D, D) and Z (B, H, D)."""
    from nlpkit.attention import linear_form

    return linear_form.attended(request, q, k, v, state, linear_form.elu_plus_one, _LEAST)
