"""Fixed embeddings of positions: sines and cosines (Vaswani et al. 2017, arXiv:1706.03762).

P positions, C width.
"""

import torch
from torch import Tensor


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table (P, C) of sec. 3.5: sin(p / 10000^(2i / C)) for all i, then the cosines."""
    place = torch.arange(positions, dtype=torch.float64)[:, None]
    sines, cosines = (torch.arange(start, width, 2, dtype=torch.float64) for start in (0, 1))
    angles = [place / 10000 ** (2 * (each // 2) / width) for each in (sines, cosines)]
    return torch.cat([angles[0].sin(), angles[1].cos()], dim=1).float()
