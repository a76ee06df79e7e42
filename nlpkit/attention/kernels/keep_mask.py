"""Which elements dropout keeps on CPUs, drawn fast.

torch draws one number with 53 bits for each element, which takes longer than all the rest of
dropout. Here an element takes 16 bits of numpy's SFC64, whose 64 bits take half as long as those of
torch's generator. So the probability is a multiple of 1 / 65,536, and the scale is exactly that of
this multiple.
"""

import numpy as np
import torch
from torch import Tensor

_LEVELS = 1 << 16


class KeepMask:
    """Draws masks that are 0 with probability `p` and else 1; the seed decides all of them."""

    def __init__(self, p: float, seed: int):
        self._dropped = min(max(round(p * _LEVELS), 1), _LEVELS - 1)  # levels of 65,536
        self.scale = _LEVELS / (_LEVELS - self._dropped)  # of kept elements
        self._bits = np.random.SFC64(seed)

    def draw(self, out: Tensor) -> Tensor:
        """Fill `out` with the next mask and return it."""
        words = self._bits.random_raw(-(-out.numel() // 4))  # four elements from one number
        level = torch.from_numpy(words.view(np.int16))[: out.numel()].view(out.shape)
        return torch.ge(level, self._dropped - _LEVELS // 2, out=out)


def draw_seed() -> int:
    """Return a seed from torch's current generator."""
    return int(torch.empty((), dtype=torch.int64).random_())
