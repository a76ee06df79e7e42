"""What GPT-1, GPT-2 and GPT-Neo have in common: layers of a block, and what is before the blocks.

A family adds its block, which puts the norms in their places, and what follows the last block.
N tokens of the pack, C hidden_size, H heads, D width of a head, V vocabulary.

The linear layers are `nn.Linear`, (out, in), with transformers' names. In transformers they are
`Conv1D`, whose weights are (in, out): `CONV1D` lists these layers of a block.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import Settings
from nlpkit.models.layers.gpt_config import GptConfig, PreNormGptConfig
from nlpkit.models.layers.packs import Dropout, dropout, select_rows
from nlpkit.models.layers.stack import Stack

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

    def __init__(self, config: PreNormGptConfig, attend: nn.Module):
        super().__init__()
        width = config.hidden_size
        self.ln_1 = nn.LayerNorm(width, config.norm_eps)
        self.attn = attend
        self.ln_2 = nn.LayerNorm(width, config.norm_eps)
        self.mlp = FeedForward(width, config.intermediate_size or 4 * width)
        self.drop = Dropout(config.residual_dropout)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        attended = self.attn(self.ln_1(x), attend, rows)
        x = select_rows(x, rows) + self.drop(attended)
        return x + self.drop(self.mlp(self.ln_2(x)))


class Decoder(Stack):
    """Learned positions before the blocks; one table for input and output."""

    config: GptConfig
    span_position_embedding: nn.Parameter | None  # GLM's, of a second position

    def __init__(self, config: GptConfig, vocab_size: int, backend: str):
        super().__init__(config, vocab_size, backend)
        shape = config.max_positions, config.hidden_size
        self.position_embedding = nn.Parameter(torch.empty(shape))
        spans = nn.Parameter(torch.empty(shape)) if config.can("prefix") else None
        self.register_parameter("span_position_embedding", spans)

    def fill_fields(self, fields: Mapping[str, Tensor], input_ids: Tensor) -> Mapping[str, Tensor]:
        """Return the fields with GLM's: in a task all of the text is context."""
        if self.span_position_embedding is None and not self.attention_tensors.needs("context"):
            return fields
        context = torch.ones_like(input_ids, dtype=torch.bool)
        return {"context": context, "span_position_ids": torch.zeros_like(input_ids), **fields}

    def embed(self, input_ids: Tensor, places: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """Return the first states (N, C), the sum of the tables' rows."""
        x = super().embed(input_ids, places, fields) + F.embedding(places, self.position_embedding)
        if self.span_position_embedding is not None:
            x = x + F.embedding(fields["span_position_ids"], self.span_position_embedding)
        return dropout(x, self.config.embedding_dropout, self.training)


class PreNormDecoder(Decoder):
    """A decoder of pre-norm blocks; a family says its kind of `Attention`."""

    config: PreNormGptConfig
    make_attention: Callable[[int, int], nn.Module] = Attention  # of width and heads

    def __init__(self, config: PreNormGptConfig, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend)
        width, heads = config.hidden_size, config.num_heads
        attentions = (self.make_attention(width, heads) for _ in range(config.num_layers))
        blocks = (PreNormBlock(config, each) for each in attentions)
        self.make_layers(blocks, nn.LayerNorm(width, config.norm_eps))
        self.reset_parameters()
