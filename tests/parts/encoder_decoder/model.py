"""Encoder and decoder over packs: target i sees source i, and nothing is padded.

N tokens of the targets, M of the sources, C hidden_size, H heads, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Layout
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.packs import last_states
from nlpkit.models.layers.vocabulary_head import TiedHead
from tests.parts.encoder_decoder import Config

LORA_TARGETS = ("query", "value")
FULL = AttentionChoice.of("full")


class Attention(nn.Module):
    """Multi-head attention; keys and values are made of `memory`."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.num_heads
        width = config.hidden_size
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        attend: attention.Attend,
    ) -> Tensor:
        """Return (N, C); `memory` is (M, C), or None where its keys are in the cache."""
        q = self.query(x).unflatten(1, (self.heads, -1))
        k = v = None
        if memory is not None:
            k = self.key(memory).unflatten(1, (self.heads, -1))
            v = self.value(memory).unflatten(1, (self.heads, -1))
        return self.output(attend(q, k, v).flatten(1))


class Block(nn.Module):
    """x + sub(norm(x)) for attention, cross attention in the decoder, and feed-forward."""

    def __init__(self, config: Config, has_cross: bool):
        super().__init__()
        width, inside, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        self.dropout = config.dropout
        self.norm, self.attention = nn.LayerNorm(width, eps), Attention(config)
        if has_cross:
            self.cross_norm, self.cross = nn.LayerNorm(width, eps), Attention(config)
        self.feed_norm = nn.LayerNorm(width, eps)
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        attend_source: attention.Attend | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C) from (N, C) and, in the decoder, the encoder's states (M, C)."""
        inner = self.norm(x)
        x = x + self._dropped(self.attention(inner, inner, attend))
        if attend_source is not None:
            x = x + self._dropped(self.cross(self.cross_norm(x), source, attend_source))
        return x + self._dropped(self.down(F.relu(self.up(self.feed_norm(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Model(TiedHead):
    """One table of tokens for sources, targets and the output."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width, layers = config.hidden_size, config.num_layers
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.position_embedding = nn.Parameter(torch.empty(config.max_positions, width))
        self.encoder = nn.ModuleList(Block(config, False) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(width, config.norm_eps)
        self.decoder = nn.ModuleList(Block(config, True) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(width, config.norm_eps)
        self.attention_tensors = AttentionTensors(
            config.kinds, layers, config.num_heads, width // config.num_heads
        )
        self.attention_choice = ""
        for name, parameter in self.named_parameters():
            if name.startswith("attention_tensors."):
                continue
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor | None = None,
        source_lengths: Sequence[int] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of the targets.

        Args:
            input_ids: (N,) int64, sequence i the target of source i.
            source_ids: (M,) int64; None where the cache holds what the encoder made of them.
        """
        layout = attention.layout_of(lengths, input_ids.device, cache)
        keys, source = None, None
        if source_ids is not None and source_lengths is not None:
            keys = Layout(source_lengths, source_ids.device)
            source = self._encode(keys, source_ids)
        kinds = self.attention_tensors
        heads = kinds.heads_like(self.token_embedding, 0.0, self.backend)
        attends = kinds.prepare(heads, layout, cache=cache)
        cross = attention.prepare(FULL, heads, layout, keys=keys, cache=cache, role="cross")
        self.attention_choice = attention.reasons([*attends, cross])
        x = self._embedded(layout, input_ids)
        for block, attend in zip(self.decoder, attends, strict=True):
            x = block(x, attend, cross, source)
        return self.decoder_norm(x)

    def _encode(self, layout: Layout, source_ids: Tensor) -> Tensor:
        """Return the encoder's states (M, C)."""
        heads = self.attention_tensors.heads_like(self.token_embedding, 0.0, self.backend)
        attend = attention.prepare(FULL, heads, layout)
        x = self._embedded(layout, source_ids)
        for block in self.encoder:
            x = block(x, attend)
        return self.encoder_norm(x)

    def _embedded(self, layout: Layout, ids: Tensor) -> Tensor:
        if layout.longest > self.config.max_positions:
            raise ValueError(f"a sequence of {layout.longest} tokens is too long for the model")
        x = F.embedding(ids, self.token_embedding)
        x = x + F.embedding(layout.positions, self.position_embedding)
        return F.dropout(x, self.config.dropout, self.training)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C): the state of the last token of each target."""
        return last_states(hidden, lengths)


FORMAT = own_format(
    Config,
    "token_embedding",
    "position_embedding",
    "encoder",
    "encoder_norm",
    "decoder",
    "decoder_norm",
    "attention_tensors",
)
