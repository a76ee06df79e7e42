"""GPT-1 (Radford et al. 2018) over packed sequences, in the layout of transformers' `openai-gpt`.

Post-norm blocks, x = norm(x + sub(x)), learned positions from 0 in every sequence, GELU in its tanh
form, one table for input and output, no norm after the last block. The layers are in
`layers/gpt.py`, which GPT-2 shares, the pass through them in `layers/stack.py`.
"""

from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Transposed
from nlpkit.models.gpt import Config
from nlpkit.models.layers.gpt import CONV1D, SAVED_MASKS, SIZES, Attention, Decoder, FeedForward
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import Dropout, select_rows

LORA_TARGETS = ("c_attn",)  # queries, keys and values are one layer
# transformers' models with a task's layer: one, which reads the last state.
TASK_HEADS = {
    "sequence_classification": TaskHead("OpenAIGPTForSequenceClassification", "score", bias=False)
}


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.attn = Attention(width, config.num_heads)
        self.ln_1 = nn.LayerNorm(width, config.norm_eps)
        self.mlp = FeedForward(width, 4 * width)
        self.ln_2 = nn.LayerNorm(width, config.norm_eps)
        self.drop = Dropout(config.residual_dropout)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        seen = self.attn(x, attend, rows)
        x = self.ln_1(select_rows(x, rows) + self.drop(seen))
        return self.ln_2(x + self.drop(self.mlp(x)))


class Model(Decoder):
    """GPT-1 with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend)
        self.make_layers((Block(config) for _ in range(config.num_layers)), nn.Identity())
        self.reset_parameters()


_OURS, _THEIRS = "layers.{num_layers}", "transformer.h.{num_layers}"
FORMAT = HfFormat(
    architecture="OpenAIGPTLMHeadModel",
    pipeline="text-generation",
    body="transformer.",
    names={
        "token_embedding": "transformer.tokens_embed.weight",
        "position_embedding": "transformer.positions_embed.weight",
        "attention_tensors": "attention_tensors",
        _OURS: _THEIRS,
        **{f"{_OURS}.{name}": Transposed(f"{_THEIRS}.{name}") for name in CONV1D},
    },
    copies={"lm_head.weight": "token_embedding"},
    ignored=SAVED_MASKS,
    sizes=SIZES,
    more_settings=lambda config: {"afn": "gelu"},
    fixed={"afn": "gelu", "tie_word_embeddings": True},
)
