"""The attention-free transformer: a weight for each channel of a key, no product with the query.

Zhai et al. 2021, arXiv:2105.14103: out_i = sigmoid(q_i) * sum_j exp(k_j + w_ij) v_j / sum_j
exp(k_j + w_ij), channel by channel (eq. 2). w is learned, one for all channels of a layer, as the
product of two narrow matrices. `full` has it for all pairs of positions, `local` for those that
are less than `window` apart, with 0 for all others, which are still seen;
`simple` has none, so that sums replace the pairs. Sums are in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.config import Size
from nlpkit.contracts.kind import Learned, ParamSpec, State, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.forms.aft import Biases
    from nlpkit.contracts.request import Layout, Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False
COST = "full: N^2; local: N * window; simple: N"
visibility = sides.visibility
mask = sides.mask


class Config(sides.SidesConfig):
    """The form, and the size of w."""

    form: Literal["full", "local", "simple"] = Field(
        "full", description="whether w is for all pairs of positions, for near ones, or for none"
    )
    window: int = Field(32, ge=1, description="distances below it have w in the form local")
    rank: Size = Field(128, description="width of the two matrices whose product is w")
    max_length: int | None = Field(
        None,
        ge=1,
        description="size of w, i.e. the longest sequence; null: max_positions of the model",
    )

    def without_effect(self) -> dict[str, str]:
        names = {"full": ["window"], "local": [], "simple": ["window", "rank", "max_length"]}
        return dict.fromkeys(names[self.form], f"with form {self.form}")

    @property
    def near(self) -> int | None:
        """The distance from which w is 0; None: it is 0 nowhere."""
        return self.window if self.form == "local" else None


def is_bounded(config: Config) -> bool:
    """Return whether sequences have at most `max_length` tokens."""
    return config.form != "simple"


def tensors(config: Config, heads: int, head_dim: int) -> dict[str, ParamSpec]:
    """Return the matrices of w: rows of queries and rows of keys, each of variance 0.01."""
    if config.form == "simple":
        return {}
    shape = (config.max_length or 0, config.rank)
    return {"query_bias": ParamSpec(shape, std=0.1), "key_bias": ParamSpec(shape, std=0.1)}


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the pairs whose weights are computed one by one, and one for each token's sum."""
    if config.form == "full":
        causal = sides.is_causal(config)
        return float(sum(n * (n + 1) / 2 if causal else n**2 for n in lengths))
    near = 0 if config.form == "simple" else min(config.window, max(lengths))
    return float(sum(lengths) * (near + 1))


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D).

    `state` is all keys and values (B, T, C); in the form simple it is the `sums` (B, 2 C).
    """
    import torch

    from nlpkit.attention.forms import aft
    from nlpkit.attention.forms.linear import sum_dtype

    dtype, config = sum_dtype(q.dtype), request.config
    with torch.autocast(q.device.type, enabled=False):
        keys, values = k.to(dtype).flatten(1), v.to(dtype).flatten(1)
        biases = None
        if tensors:
            rows, columns = (tensors[name].to(dtype) for name in ("query_bias", "key_bias"))
            biases = aft.Biases(rows, columns, config.near)
        if state is not None:
            means = _generate(request.layout, keys, values, biases, state)
        else:
            lengths, causal = request.layout.lengths, sides.is_causal(config)
            means = aft.compute_means(keys, values, lengths, causal, biases)
        return (q.to(dtype).sigmoid() * means.view(q.shape)).to(q.dtype)


def _generate(layout: Layout, k: Tensor, v: Tensor, biases: Biases | None, state: State) -> Tensor:
    import torch

    from nlpkit.attention.forms import aft, growing

    if biases is not None:
        keys = growing.store(state, "keys", k, layout)
        values = growing.store(state, "values", v, layout)
        if layout.past is not None:
            return aft.compute_new_means(keys, values, layout, biases)
    elif layout.past is not None:
        means, state["sums"] = aft.continue_means(k, v, state["sums"])
        return means
    else:
        own = aft.weigh(k, v).split(layout.lengths)
        state["sums"] = torch.stack([each.sum(0) for each in own])
    return aft.compute_means(k, v, layout.lengths, True, biases)
