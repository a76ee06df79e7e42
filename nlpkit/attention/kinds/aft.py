"""The attention-free transformer: a weight for each channel of a key, no product with the query.

Zhai et al. 2021, arXiv:2105.14103: out_i = sigmoid(q_i) * sum_j exp(k_j + w_ij) v_j / sum_j
exp(k_j + w_ij), channel by channel (eq. 2). w is learned, one for all channels of a layer, as the
product of two narrow matrices. `full` has it for all pairs of positions, `local` for those that
are less than `window` apart, with 0 for all others, which are still seen;
`simple` has none, so that sums replace the pairs. Weights and sums are in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nlpkit.attention.contract import Learned
from nlpkit.attention.kinds import _either
from nlpkit.config import Size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from nlpkit.attention.aft_form import Biases
    from nlpkit.attention.contract import Request

VISIBILITY = "causal"
KERNEL = None
FIELDS: tuple[str, ...] = ("position",)
OPTIONAL: tuple[str, ...] = ()
CROSS = False
COST = "full: N^2; local: N * window; simple: N"
visibility = _either.visibility
mask = _either.mask


class Config(_either.EitherConfig):
    """The form, and the size of w."""

    form: Literal["full", "local", "simple"] = Field(
        "full", description="whether w is for all pairs of positions, for near ones, or for none"
    )
    window: int = Field(32, ge=1, description="distances below it have w in the form local")
    rank: Size = Field(128, description="width of the two matrices whose product is w")
    max_length: int | None = Field(
        None,
        ge=1,
        description="positions that w has, the longest sequence there can be; null: the model's",
    )

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        names = {"full": ["window"], "local": [], "simple": ["window", "rank", "max_length"]}
        return dict.fromkeys(names[self.form], f"with form {self.form}")

    @property
    def bounded(self) -> bool:
        """Whether sequences have at most `max_length` tokens."""
        return self.form != "simple"

    @property
    def near(self) -> int | None:
        """The distance from which w is 0; None: it is 0 nowhere."""
        return self.window if self.form == "local" else None


def tensors(config, heads, head_dim):
    """Return the matrices of w: rows of queries and rows of keys, each of variance 0.01."""
    if config.form == "simple":
        return {}
    shape = (config.max_length, config.rank)
    return {"query_bias": Learned(shape, std=0.1), "key_bias": Learned(shape, std=0.1)}


def pairs(config, lengths):
    """Return the pairs whose weights are computed one by one, and one for each token's sum."""
    if config.form == "full":
        return _either.pairs(config, lengths)
    near = 0 if config.form == "simple" else min(config.window, max(lengths))
    return float(sum(lengths) * (near + 1))


def reference(config, q, k, v, tensors):
    """Return (n, H, D) for one sequence, by the weights (n, n, H, D) of all channels."""
    import torch

    place = torch.arange(len(q), device=q.device)
    w = q.new_zeros(len(q), len(q))
    if tensors:
        w = tensors["query_bias"][: len(q)] @ tensors["key_bias"][: len(q)].mT
    if config.near is not None:
        w = w * ((place[:, None] - place).abs() < config.near)
    exponents = k[None] + w[:, :, None, None]
    if _either.is_causal(config):
        later = place > place[:, None]
        exponents = exponents.masked_fill(later[:, :, None, None], -torch.inf)
    return q.sigmoid() * (exponents.softmax(1) * v).sum(1)


def prepared(request):
    """Return how tokens see their left, in the causal form."""
    from nlpkit.attention.aft_form import Plan

    config = request.config
    if request.layout.past is not None or not _either.is_causal(config):
        return None
    if config.form == "simple":
        return Plan.of(request.layout, 1, 1)
    return Plan.of(request.layout, config.near, config.max_length)


def attend(request, q, k, v, tensors, state):
    """Return (N, H, D).

    `state` is, in the form simple, the sums `both` (B, 2, C) and the largest key (B, C); else all
    keys and values.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    from nlpkit.attention.linear_form import wide

    dtype = wide(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        keys, values = k.to(dtype).flatten(1), v.to(dtype).flatten(1)
        learned = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        if state is not None:
            mean = _generated(request, keys, values, learned, state)
        elif request.prepared is None and torch.is_grad_enabled():
            # What is computed on the way is many times the inputs.
            given = request, keys, values, learned
            mean = checkpoint(_mean, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            mean = _mean(request, keys, values, learned)
        return (q.to(dtype).sigmoid() * mean.view(q.shape)).to(q.dtype)


def _mean(request: Request, k: Tensor, v: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the weighted mean (N, C) of the values of the pack."""
    from nlpkit.attention import aft_both_ways, aft_form

    config, plan = request.config, request.prepared
    if plan is None:
        biases = _biases(config, tensors) if tensors else None
        return aft_both_ways.mean(k, v, request.layout.lengths, config.near, biases)
    if not tensors:
        return aft_form.simple(k, v, plan.begins).mean
    rows, columns = tensors["query_bias"], tensors["key_bias"]
    return aft_form.causal(k, v, rows, columns, plan, config.near)


def _biases(config: Config, tensors: Mapping[str, Tensor]) -> Biases:
    """Return w as a function of positions."""
    from nlpkit.attention.aft_form import biases_of

    return biases_of(tensors["query_bias"], tensors["key_bias"], config.near)


def _generated(
    request: Request, k: Tensor, v: Tensor, tensors: Mapping[str, Tensor], state: dict[str, Tensor]
) -> Tensor:
    """Return the mean (N, C) of the values of new tokens, and keep what later ones need."""
    from nlpkit.attention import aft_form, growing

    layout, plan = request.layout, request.prepared
    count = len(layout.lengths)
    if tensors:
        keys = growing.store(state, "keys", k, layout)
        values = growing.store(state, "values", v, layout)
        if plan is not None:
            return _mean(request, k, v, tensors)
        biases = _biases(request.config, tensors)
        return aft_form.rows_of(keys, values, layout, biases, request.config.max_length)
    if plan is not None:
        sums = aft_form.simple(k, v, plan.begins)
        last = sums.at(layout.cu_seqlens[1:].long() - 1)
        state["largest"], state["both"] = last.largest, last.both
        return sums.mean
    k, v = (x.unflatten(0, (count, -1)) for x in (k, v))
    mean, state["largest"], state["both"] = aft_form.continued(
        k, v, state["largest"], state["both"]
    )
    return mean.flatten(0, 1)
