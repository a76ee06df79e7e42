"""What GPT-1, GPT-2 and GPT-Neo have in common: layers of a block, decoder around the blocks.

A family adds its block, which puts the norms in their places, and what follows the last block.
N tokens of the pack, C hidden_size, H heads, D width of a head, V vocabulary.

The linear layers are `nn.Linear`, (out, in), with transformers' names. In transformers they are
`Conv1D`, whose weights are (in, out): `CONV1D` lists these layers of a block.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.format import Settings
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import initialize
from nlpkit.models.layers.gpt_config import GptConfig
from nlpkit.models.layers.packs import Dropout, dropout, layout_within, select_rows
from nlpkit.models.layers.vocabulary_head import TiedHead

CONV1D = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
SAVED_MASKS = ("attn.bias", "attn.masked_bias")  # by earlier versions of transformers
SIZES = {  # our settings with transformers' names
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "max_positions": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
    "residual_dropout": "resid_pdrop",
    "init_std": "initializer_range",
}

ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")  # transformers computes the same with either name


def check_activation(settings: Settings, family: str) -> None:
    """Raise `ValueError` if config.json has another activation than GELU in its tanh form."""
    activation = settings.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation_function is {activation!r}; {family} has {' or '.join(ACTIVATIONS)}"
        )


class Attention(nn.Module):
    """Multi-head attention."""

    MATRICES = {"c_attn.weight": 3}  # noqa: RUF012

    def __init__(self, hidden_size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)  # q, k, v
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in self.c_attn(x).chunk(3, 1))
        return self.c_proj(select_rows(attend(q, k, v).flatten(1), rows))


class FeedForward(nn.Module):
    """Two linear layers with GELU in its tanh form between them."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.c_fc = nn.Linear(hidden_size, intermediate_size)
        self.c_proj = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: GptConfig, attend: nn.Module, inner_size: int):
        super().__init__()
        width = config.hidden_size
        self.ln_1 = nn.LayerNorm(width, config.norm_eps)
        self.attn = attend
        self.ln_2 = nn.LayerNorm(width, config.norm_eps)
        self.mlp = FeedForward(width, inner_size)
        self.drop = Dropout(config.residual_dropout)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        attended = self.attn(self.ln_1(x), attend, rows)
        x = select_rows(x, rows) + self.drop(attended)
        return x + self.drop(self.mlp(self.ln_2(x)))


class Decoder(TiedHead):
    """Token and position embeddings, then blocks; one table for input and output."""

    score_scale: float | None = None  # of queries times keys; None: 1 / sqrt(width of a head)

    def __init__(
        self, config: GptConfig, vocab_size: int, backend: str, make_block: Callable[[], nn.Module]
    ):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.position_embedding = nn.Parameter(torch.empty(config.max_positions, width))
        self.span_position_embedding: nn.Parameter | None = None  # of GLM's second position
        self.layers = nn.ModuleList(make_block() for _ in range(config.num_layers))
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, width // config.num_heads
        )
        self.final_norm: nn.Module = nn.Identity()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, std) with torch's current generator; set biases to 0."""
        initialize(self.named_parameters(), self.initial_std)

    def initial_std(self, name: str) -> float:
        """Return the standard deviation of the initial values of a weight."""
        return self.config.init_std

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        cache: Cache | None = None,
        rows: Tensor | None = None,
        **fields: Tensor,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        With `rows` (M,), in the order of the pack, these are the states of these tokens alone. The
        `cache` has keys and values of the earlier tokens; this call adds those of its tokens.
        `fields` is what else the objective gives, (N,) each: kinds of attention may read it.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config = self.config
        layout = layout_within(lengths, config.max_positions, input_ids.device, cache)
        if self.span_position_embedding is not None:
            # In a task all of the text is context.
            context = torch.ones_like(input_ids, dtype=torch.bool)
            fields = {"context": context, "span_position_ids": torch.zeros_like(input_ids)} | fields
        layout = layout.with_fields(fields)
        kinds = self.attention_tensors
        heads = kinds.heads_like(
            self.token_embedding, config.attention_dropout, self.backend, self.score_scale
        )
        attends = kinds.prepare(heads, layout, cache=cache)
        self.attention_choice = attention.reasons(attends)
        words = F.embedding(input_ids, self.token_embedding)
        places = fields.get("position_ids", layout.positions)
        x = words + F.embedding(places, self.position_embedding)
        if self.span_position_embedding is not None:
            x = x + F.embedding(fields["span_position_ids"], self.span_position_embedding)
        x = dropout(x, config.embedding_dropout, self.training)
        way = [*zip(self.layers, attends, strict=True)] * config.setting("passes", 1)
        for number, (layer, attend) in enumerate(way, 1):
            x = layer(x, attend, rows if number == len(way) else None)
        return self.final_norm(x)
