"""What ModernBERT and its decoder have in common: layers, the model around them.

Pre-norm layers without biases, x + attention(norm(x)), then x + feed_forward(norm(x)), GeGLU
(Shazeer 2020), rotary positions whose base is another one in layers that see a window. The first
layer has no norm before attention, as the embeddings have one (Warner et al. 2024, sec. 2.1.1).
N tokens of the pack, M selected rows, C hidden_size, H heads, D width of a head, V vocabulary.

Differs from HF: initial weights are not cut off at two standard deviations.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention import Attend
from nlpkit.models.layers.alternating_config import LOCAL
from nlpkit.models.layers.encoder import ACTIVATIONS
from nlpkit.models.layers.head import Head
from nlpkit.models.layers.modernbert_config import ModernBertConfig
from nlpkit.models.layers.packs import dropout, select_rows
from nlpkit.models.layers.rotary import Rotation
from nlpkit.models.layers.rotary_config import Rope
from nlpkit.models.layers.stack import Stack


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values are made by one layer, or by three."""

    MATRICES = {"Wqkv.weight": 3}  # noqa: RUF012

    def __init__(self, config: ModernBertConfig, projections: Sequence[str]):
        super().__init__()
        self.heads, self.dropout = config.num_heads, config.attention_dropout
        width, self.projections = config.hidden_size, projections
        for name in projections:
            self.add_module(name, nn.Linear(width, 3 * width // len(projections), bias=False))
        self.Wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        made = [self.get_submodule(name)(x) for name in self.projections]
        parts = made if len(made) == 3 else made[0].chunk(3, 1)
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in parts)  # (N, H, D)
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

    def forward(self, x: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        x = select_rows(x, rows) + self.attn(self.attn_norm(x), attend, rows)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(Stack):
    """The model with its head of tokens; a family says what makes queries, keys and values."""

    config: ModernBertConfig
    projections: Sequence[str]

    def __init__(self, config: ModernBertConfig, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, tie=config.tie, bias=True)
        self.embedding_norm = _norm(config)
        attns = (Attention(config, self.projections) for _ in range(config.num_layers))
        layers = (Layer(config, attn, is_first=number == 0) for number, attn in enumerate(attns))
        self.make_layers(layers, _norm(config))
        self.output_dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.output_norm = _norm(config)
        self.reset_parameters()

    def initial_std(self, name: str) -> float:
        """Return `init_std`, over the root of the added layers for those that add (Megatron)."""
        is_residual = name.endswith(("Wo.weight", "output_dense.weight", "output_embedding"))
        std = self.config.init_std
        return std / (2 * self.config.num_layers) ** 0.5 if is_residual else std

    def embed(self, input_ids: Tensor, places: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the first states (N, C), under a norm."""
        x = self.embedding_norm(super().embed(input_ids, places, fields))
        return dropout(x, self.config.embedding_dropout, self.training)

    def turn(self, attends: list[Attend], places: Tensor, dtype: torch.dtype) -> list[Attend]:
        """Return the attention of each layer, which turns its queries and keys by its base."""
        config, turns = self.config, {}
        for is_local, theta in ((False, config.global_theta), (True, config.local_theta)):
            turns[is_local] = Rotation(Rope(theta=theta), config.width_per_head, places, dtype)
        each = zip(attends, self.attention_tensors.of_layers, strict=True)
        return [turns[choice.kind == LOCAL].of(attend) for attend, choice in each]

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
