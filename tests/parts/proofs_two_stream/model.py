"""The model; both streams have the same weights (Yang et al. 2019, sec. 2.3), one head each.

N tokens of a pack, C hidden_size.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.layout import Layout
from nlpkit.models.hf_format import own_format
from nlpkit.models.vocabulary_head import TiedHead
from tests.parts.proofs_two_stream import Config

LORA_TARGETS = ("qkv",)


class Block(nn.Module):
    """Attention to the contents, then a feed-forward layer."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, contents: Tensor, mask: Tensor) -> Tensor:
        """Return (N, C) from a stream (N, C), the contents (N, C) and what is seen (N, N)."""
        q = self.qkv(x).chunk(3, 1)[0]
        _, k, v = self.qkv(contents).chunk(3, 1)
        scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(~mask, -1e9)
        # The first of an order sees nothing.
        seen = (scores.softmax(1) * mask.any(1, keepdim=True)) @ v
        x = self.norm_1(x + seen)
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


def masks(rank: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return what contents see, and what queries see, (N, N): of `same` sequences."""
    ours, theirs = rank[:, None], rank[None]
    return same & (theirs <= ours), same & (theirs < ours)


class Model(TiedHead):
    """Two streams over packed sequences."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.randn(vocab_size, width) * 0.02)
        self.position_embedding = nn.Parameter(torch.randn(config.max_positions, width) * 0.02)
        self.query = nn.Parameter(torch.randn(width) * 0.02)  # w of the paper
        self.layers = nn.ModuleList(Block(width) for _ in range(config.num_layers))
        self.attention_choice = ""

    def forward(self, lengths: Sequence[int], input_ids: Tensor, rank: Tensor) -> Tensor:
        """Return (N, C), the query stream."""
        layout = Layout.of(lengths, input_ids.device)
        sizes = torch.tensor(lengths, device=input_ids.device)
        owner = torch.arange(len(lengths), device=input_ids.device).repeat_interleave(sizes)
        of_contents, of_queries = masks(rank, owner[:, None] == owner[None])
        places = F.embedding(layout.positions, self.position_embedding)
        contents = F.embedding(input_ids, self.token_embedding) + places
        queries = self.query + places
        for layer in self.layers:
            queries = layer(queries, contents, of_queries)
            contents = layer(contents, contents, of_contents)
        return queries

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C): the mean of each sequence."""
        return torch.stack([part.mean(0) for part in hidden.split([*lengths])])


def flops(config: Config, vocab_size: int, lengths: Sequence[int], targets: int) -> float:
    """Return the operations of a step, without attention."""
    weights = 2 * config.num_layers * 11 * config.hidden_size**2
    return 6.0 * (sum(lengths) * weights + targets * vocab_size * config.hidden_size)


FORMAT = own_format(Config, "token_embedding", "position_embedding", "query", "layers")
