"""The model: GPT-2's blocks, each head of keys and values for several heads of queries.

Ainslie et al. 2023, arXiv:2305.13245. N tokens of a pack, C hidden_size, H heads of queries, G of
keys, D width of a head.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.gpt2.model import LORA_TARGETS as LORA_TARGETS
from nlpkit.models.gpt2.model import Model as Gpt2
from tests.parts.grouped import Config


class Attention(nn.Module):
    """Queries (N, H, D), keys and values (N, G, D)."""

    def __init__(self, config: Config):
        super().__init__()
        self.width = config.hidden_size // config.num_heads
        self.sizes = config.hidden_size, *2 * [config.num_key_heads * self.width]
        self.c_attn = nn.Linear(config.hidden_size, sum(self.sizes))
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C)."""
        parts = self.c_attn(x).split(self.sizes, 1)
        q, k, v = (part.unflatten(1, (-1, self.width)) for part in parts)
        return self.c_proj(attend(q, k, v).flatten(1))


class Model(Gpt2):
    """GPT-2 with grouped queries."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend)
        for layer in self.layers:
            layer.attn = Attention(config)
        self.reset_parameters()

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Return (N, C)."""
        layout = attention.layout_of(lengths, input_ids.device, cache)
        kinds, config = self.attention_tensors, self.config
        heads = kinds.heads_like(self.token_embedding, config.attention_dropout, self.backend)
        heads = replace(heads, key_heads=config.num_key_heads)
        attends = kinds.prepare(heads, layout, cache=cache)
        self.attention_choice = attention.reasons(attends)
        x = F.embedding(input_ids, self.token_embedding)
        x = x + F.embedding(layout.positions, self.position_embedding)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, attend)
        return self.final_norm(x)


FORMAT = own_format(
    Config, "token_embedding", "position_embedding", "layers", "final_norm", "attention_tensors"
)
