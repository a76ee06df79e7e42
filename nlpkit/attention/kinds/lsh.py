"""Reformer's attention: each token sees tokens of its own bucket of a random hash, a few chunks.

Kitaev et al. 2020, arXiv:2001.04451, sec. 2. Queries and keys are one vector x, keys divided by
their length. In each of the `rounds` a token falls into the bucket argmax([xR; -xR]), R random. The
tokens of a bucket, in order, are cut into chunks, and a token sees its own chunk and the one before
it; itself only if it sees nothing else. The answer is a softmax over what it sees in any round (the
paper's N_ij).

Three choices. x is (q + k) / sqrt(2) of the family's own queries and keys: again one projection of
the input, so no weight is without use. Chunks are counted from the start of a bucket, in the paper
through all buckets, where a later token moves the borders of earlier chunks: so what a token sees
does not depend on its right. R is drawn once, from `seed`: it is the same in all steps and layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from nlpkit.attention.forms import sides
from nlpkit.config import Size
from nlpkit.contracts.kind import Learned, State, Visibility

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request

VISIBILITY: Visibility = "causal"
FIELDS = ("position",)
CROSS = False
DROPOUT = True  # its probabilities can have dropout
COST = "N · chunk · rounds"
visibility = sides.visibility
mask = sides.mask


class Config(sides.SidesConfig):
    """The hash, and how much of a bucket is seen."""

    chunk: Size = Field(64, description="tokens of a bucket that are a chunk")
    buckets: Size = Field(32, ge=2, multiple_of=2, description="buckets of a round, an even number")
    rounds: int = Field(4, ge=1, le=64, description="hashes whose buckets are seen together")
    seed: int = Field(0, ge=0, description="seed of the random hashes")


def pairs(config: Config, lengths: Sequence[int]) -> float:
    """Return the pairs whose scores are computed: of each token with three or four chunks."""
    chunks = 3 if sides.is_causal(config) else 4
    return float(sum(lengths) * config.rounds * chunks * config.chunk)


def prepare(request: Request) -> Tensor:
    """Return the random matrices R of all rounds and heads, (H, D, rounds, buckets / 2)."""
    from nlpkit.attention.forms import hashed

    return hashed.draw(request)


def attend(
    request: Request, q: Tensor, k: Tensor, v: Tensor, tensors: Learned, state: State | None
) -> Tensor:
    """Return (N, H, D), computed in float32.

    `state` is all shared vectors and values, `vectors` and `values` (B, T, H, D).
    """
    import torch

    from nlpkit.attention.forms import growing, hashed
    from nlpkit.attention.forms.linear import sum_dtype

    layout, dtype = request.layout, sum_dtype(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        x, values = (q.to(dtype) + k.to(dtype)) * 0.5**0.5, v.to(dtype)
        if state is not None:
            vectors = growing.store(state, "vectors", x, layout)
            held = growing.store(state, "values", values, layout)
            if layout.past is not None:
                return hashed.continue_texts(request, x, vectors, held).to(q.dtype)
        return hashed.attend(request, x, values).to(q.dtype)
