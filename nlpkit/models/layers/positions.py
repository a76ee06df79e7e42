"""Positions: their fixed embeddings (Vaswani et al. 2017, arXiv:1706.03762), and RoBERTa's count.

P positions, N tokens of a pack, C width.
"""

import torch
from torch import Tensor

from nlpkit.contracts.request import Layout


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table (P, C) of sec. 3.5: sin(p / 10000^(2i / C)) for all i, then the cosines."""
    place = torch.arange(positions, dtype=torch.float64)[:, None]
    sines, cosines = (torch.arange(start, width, 2, dtype=torch.float64) for start in (0, 1))
    angles = [place / 10000 ** (2 * (each // 2) / width) for each in (sines, cosines)]
    return torch.cat([angles[0].sin(), angles[1].cos()], dim=1).float()


def count_positions(ids: Tensor, layout: Layout, padding_idx: int) -> Tensor:
    """Return RoBERTa's positions (N,), `padding_idx` + 1, + 2, … in each sequence.

    A token with the id `padding_idx`, which is rarely in a text, has the position `padding_idx`
    and is not counted, unless it is in a cache.
    """
    counted = (ids != padding_idx).long()
    total = counted.cumsum(0)
    first = layout.cu_seqlens[:-1].long()
    before = (total - counted)[first]  # those of the sequences before
    past = layout.positions[first]  # tokens of the same sequences in a cache
    return (total + (past - before)[layout.document_ids]) * counted + padding_idx
