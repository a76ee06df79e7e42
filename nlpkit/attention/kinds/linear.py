"""Linear attention: the weights are products of features, so that sums replace the matrix.

Katharopoulos et al. 2020, arXiv:2006.16236: phi(x) = elu(x) + 1 (eq. 7), the weight of key j for
query i is phi(q_i) phi(k_j), over the sum of the weights of all keys that i sees (eq. 4 and 8).
Time and memory grow with the tokens alone; a model that writes keeps the sums S and Z (eq. 18-20),
whose size does not grow. Products and sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nlpkit.attention.forms import sides
from nlpkit.contracts.kind import Learned, State, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.forms.chunks import Chunks
    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False
COST = "N"
visibility = sides.visibility
mask = sides.mask
_LEAST = 1e-30  # of a sum of weights: features far below 0 are 0 in float32


class Config(sides.SidesConfig):
    """Linear attention has no settings of its own."""


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the work of a token as that of 64 pairs, which is right for heads of width 64.

    The sums take D times D products, twice; a pair takes D of them, twice.
    """
    return 64.0 * sum(lengths)


def prepare(request: Request) -> Chunks | None:
    """Return the chunks of the pack where they are needed."""
    from nlpkit.attention.forms import linear

    return linear.make_chunks(request)


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D); `state` is S (B, H, D, D) and Z (B, H, D)."""
    from nlpkit.attention.forms import linear

    return linear.attend(request, q, k, v, state, linear.elu_plus_one, _LEAST)
