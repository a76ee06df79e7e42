"""Embeddings of tokens, positions and types, and the positions and types themselves.

P positions, N tokens of a pack, C width, E width of the embeddings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.contracts.request import Layout
from nlpkit.models.layers.encoder_config import PostNormConfig
from nlpkit.models.layers.packs import dropout


class Embeddings(nn.Module):
    """The sum of word, position and type embeddings, under a norm and dropout.

    `positions` and `types` are rows of the tables; 0: the sum has none of them.
    """

    def __init__(self, config: PostNormConfig, width: int, positions: int, types: int):
        super().__init__()
        self.dropout = config.dropout
        self.position_embedding = _make_table(positions, width)
        self.type_embedding = _make_table(types, width)
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, words: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """Return (N, E) from the words' embeddings (N, E); `positions`, `types` (N,) int64.

        `types` of None are 0; so are those of a model with a single one, such as a teacher's.
        """
        x = words
        if self.position_embedding is not None:
            x = x + F.embedding(positions, self.position_embedding)
        if self.type_embedding is not None:
            if types is None or len(self.type_embedding) == 1:
                types = torch.zeros_like(positions)
            x = x + F.embedding(types, self.type_embedding)
        return dropout(self.norm(x), self.dropout, self.training)


def _make_table(rows: int, width: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(rows, width)) if rows else None


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table (P, C): sin(p / 10000^(2i / C)) for all i, then the cosines.

    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5.
    """
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


def number_texts(layout: Layout, types: Tensor, ids: Tensor) -> Tensor:
    """Return (N,): 1 in the first of two texts, 2 in the second, 0 in delimiters and single texts.

    By the token types (N,), which are 0 up to the delimiter between two texts, then 1; RoBERTa has
    it twice. What is before the first text counts to it, what is behind the second to that.
    """
    owner, place = layout.document_ids, layout.positions
    sizes = torch.zeros(len(layout.lengths), dtype=torch.int64, device=types.device)
    second = sizes.index_add(0, owner, (types == 0).long())[owner]  # where type 1 begins
    again = (place == second) & (ids == ids.roll(1))
    behind = second + sizes.index_add(0, owner, again.long())[owner]
    is_first, is_second = place < second - 1, place >= behind
    return (is_first + 2 * is_second.long()) * (second < layout.token_lengths)
