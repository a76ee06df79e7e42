"""Each token sees all tokens, with a learned bias for their distance (T5's encoder).

Raffel et al. 2020, arXiv:1910.10683, sec. 2.1: one bias for each head and bucket of distances,
added to the scores, the same in all layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.attention.forms import buckets
from nlpkit.contracts.kind import Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position",)
COST = "N²"
tensors, buffers, bias_index = buckets.tensors, buckets.buffers, buckets.bias_index


class Config(buckets.Buckets):
    """The rows of the bias table; the defaults are T5's."""


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True for every pair of query and key."""
    return (q["position"] >= 0) & (k["position"] >= 0)
