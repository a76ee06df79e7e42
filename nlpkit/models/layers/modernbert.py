"""What ModernBERT and its decoder have in common: layers, the model around them.

Pre-norm layers without biases, x + attention(norm(x)), then x + feed_forward(norm(x)), GeGLU
(Shazeer 2020), rotary positions whose base is another one in layers that see a window. The first
layer has no norm before attention, as the embeddings have one (Warner et al. 2024, sec. 2.1.1).
N tokens of the pack, M selected rows, C hidden_size, H heads, D width of a head, V vocabulary.

Differs from HF: initial weights are not cut off at two standard deviations.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import ACTIVATIONS, initialize
from nlpkit.models.layers.head import Head
from nlpkit.models.layers.modernbert_config import LOCAL, ModernBertConfig
from nlpkit.models.layers.packs import dropout, layout_within, select_rows
from nlpkit.models.layers.rotary import Rotation
from nlpkit.models.layers.rotary_config import Rope
from nlpkit.models.layers.vocabulary_head import OutputHead


class Attention(nn.Module):
    """Multi-head attention whose projections are one layer."""

    MATRICES = {"Wqkv.weight": 3}  # noqa: RUF012

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.heads, self.dropout = config.num_heads, config.attention_dropout
        self.make_projections(config.hidden_size)
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def make_projections(self, width: int) -> None:
        """Add the layers of queries, keys and values."""
        self.Wqkv = nn.Linear(width, 3 * width, bias=False)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values, (N, C) each."""
        return self.Wqkv(x).chunk(3, 1)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in self.project(x))
        seen = select_rows(attend(q, k, v).flatten(1), rows)
        return dropout(self.Wo(seen), self.dropout, self.training)


class FeedForward(nn.Module):
    """GeGLU: Wo(activation(a) · b), where Wi makes a and b."""

    MATRICES = {"Wi.weight": 2}  # noqa: RUF012

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.activation, self.dropout = ACTIVATIONS[config.hidden_act], config.mlp_dropout
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inside, gate = self.Wi(x).chunk(2, 1)
        return self.Wo(dropout(self.activation(inside) * gate, self.dropout, self.training))


def _norm(config: ModernBertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, bias=False)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: ModernBertConfig, attn: Attention, is_first: bool):
        super().__init__()
        self.attn_norm = nn.Identity() if is_first else _norm(config)
        self.attn = attn
        self.mlp_norm = _norm(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        x = select_rows(x, rows) + self.attn(self.attn_norm(x), attend, rows)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(OutputHead):
    """The model with its head of tokens; a family says its kind of `Attention`."""

    make_attention: Callable[[ModernBertConfig], Attention] = Attention

    def __init__(self, config: ModernBertConfig, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.embedding_norm = _norm(config)
        self.layers = nn.ModuleList(
            Layer(config, self.make_attention(config), number == 0)
            for number in range(config.num_layers)
        )
        self.final_norm = _norm(config)
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, config.width_per_head
        )
        self.output_dense = nn.Linear(width, width, bias=False)
        self.output_norm = _norm(config)
        self.make_output(vocab_size, width, tie=config.tie)
        initialize(self.named_parameters(), self._initial_std)

    def _initial_std(self, name: str) -> float:
        """Return `init_std`, over the root of the added layers for those that add (Megatron)."""
        is_residual = name.endswith(("Wo.weight", "output_dense.weight", "output_embedding"))
        std = self.config.init_std
        return std / (2 * self.config.num_layers) ** 0.5 if is_residual else std

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        `cache` has keys and values of the earlier tokens, if attention is causal; this call adds
        those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config = self.config
        layout = layout_within(lengths, config.max_positions, input_ids.device, cache)
        kinds = self.attention_tensors
        heads = kinds.heads_like(self.token_embedding, config.attention_dropout, self.backend)
        attends = kinds.prepare(heads, layout, cache=cache)
        self.attention_choice = attention.reasons(attends)
        turns = [
            Rotation(Rope(theta=theta), config.width_per_head, layout.positions, heads.dtype)
            for theta in (config.global_theta, config.local_theta)
        ]
        x = self.embedding_norm(F.embedding(input_ids, self.token_embedding))
        x = dropout(x, config.embedding_dropout, self.training)
        for number, (layer, attend) in enumerate(zip(self.layers, attends, strict=True)):
            turn = turns[kinds.of_layers[number].kind == LOCAL]
            x = layer(x, turn.of(attend), rows if number == config.num_layers - 1 else None)
        return self.final_norm(x)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, C), from hidden states (M, C)."""
        return self.output_norm(F.gelu(self.output_dense(hidden)))


class ModernHead(Head):
    """A dense layer, GELU and a norm, then `Head`: the head of ModernBERT's tasks."""

    def __init__(self, hidden_size: int, outputs: int, dropout: float, bias: bool = False):
        super().__init__(hidden_size, outputs, dropout, bias)
        self.dense = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.normal_(self.dense.weight, std=0.02)
        self.norm = nn.LayerNorm(hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(self.norm(F.gelu(self.dense(states))))
