"""Each token sees all tokens, with a learned bias for their distance (T5's encoder).

Raffel et al. 2020, arXiv:1910.10683, sec. 2.1: one bias for each head and bucket of distances,
added to the scores, the same in all layers.
"""

from nlpkit.attention.forms import buckets, sides
from nlpkit.contracts.kind import Visibility

VISIBILITY: Visibility = "bidirectional"
FIELDS = ("position",)
COST = "N²"
mask = sides.see_all
tensors, buffers, bias_index = buckets.tensors, buckets.buffers, buckets.bias_index


class Config(buckets.Buckets):
    """The rows of the bias table; the defaults are T5's."""
