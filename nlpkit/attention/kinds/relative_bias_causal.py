"""Each token sees itself and the tokens to its left, with a learned bias for their distance.

The attention of T5's decoder (Raffel et al. 2020, arXiv:1910.10683, sec. 2.1): one bias for each
head and bucket of distances, added to the scores, the same in all layers.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.attention.forms import buckets, sides
from nlpkit.config import Size
from nlpkit.contracts.kind import Visibility

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
COST = "N² / 2"
mask = sides.see_left
tensors, buffers, bias_index = buckets.tensors, buckets.buffers, buckets.bias_index


class Config(buckets.Buckets):
    """The rows of the bias table; the defaults are T5's."""

    BIDIRECTIONAL: ClassVar[bool] = False

    num_buckets: Size = Field(32, ge=4, description="distance buckets, all for keys to the left")
