"""GPT-1 (Radford et al. 2018) over packed sequences, in the layout of transformers' `openai-gpt`.

Post-norm blocks, x = norm(x + sub(x)), learned positions from 0 in every sequence, GELU in its tanh
form, one table for input and output, no norm after the last block.
N tokens of the pack, C hidden_size, H heads, D width of a head, V vocabulary.

The linear layers are `nn.Linear`, (out, in), with transformers' names. In transformers they are
`Conv1D`, whose weights are (in, out): `FORMAT` lists these layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.models.attention_tensors import AttentionTensors
from nlpkit.models.compute import compute_dtype
from nlpkit.models.flops import visible_pairs
from nlpkit.models.gpt import Config
from nlpkit.models.head import TaskHead, last_states
from nlpkit.models.hf_format import HfFormat, Settings, Transposed
from nlpkit.models.vocabulary_head import TiedHead

LORA_TARGETS = ("c_attn",)  # queries, keys and values are one layer
# transformers' models with a task's layer: one, which reads the last state.
TASK_HEADS = {
    "sequence_classification": TaskHead("OpenAIGPTForSequenceClassification", "score", bias=False)
}


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.num_heads
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)  # q, k, v
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, attend: attention.Attend, tensors: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in self.c_attn(x).chunk(3, 1))
        return self.c_proj(attend(q, k, v, tensors).flatten(1))


class FeedForward(nn.Module):
    """Two linear layers, 4 C wide between them."""

    def __init__(self, config: Config):
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.c_proj = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x))."""

    def __init__(self, config: Config):
        super().__init__()
        self.attn = Attention(config)
        self.ln_1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.dropout = config.residual_dropout

    def forward(self, x: Tensor, attend: attention.Attend, tensors: Mapping[str, Tensor]) -> Tensor:
        x = self.ln_1(x + F.dropout(self.attn(x, attend, tensors), self.dropout, self.training))
        return self.ln_2(x + F.dropout(self.mlp(x), self.dropout, self.training))


class Model(TiedHead):
    """GPT-1 with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.position_embedding = nn.Parameter(torch.empty(config.max_positions, width))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, width // config.num_heads
        )
        self.attention_choice = ""  # backends with their reasons, for the log
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, init_std) with torch's current generator; set biases to 0."""
        for name, parameter in self.named_parameters():
            if name.startswith("attention_tensors."):  # initialized by `AttentionTensors`
                continue
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=self.config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Args:
            input_ids: (N,) int64.
            cache: keys and values of the earlier tokens; this call adds those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config = self.config
        layout = attention.layout_of(lengths, input_ids.device, cache)
        if layout.longest > config.max_positions:
            raise ValueError(
                f"a sequence of {layout.longest} tokens; the model has {config.max_positions} "
                "positions"
            )
        attends = attention.prepare_layers(
            config.kinds,
            config.num_layers,
            lambda choice: attention.prepare(
                choice,
                layout,
                tensors=self.attention_tensors.of(choice),
                heads=config.num_heads,
                head_dim=config.hidden_size // config.num_heads,
                dtype=compute_dtype(self.token_embedding),
                device=input_ids.device,
                training=self.training,
                dropout=config.attention_dropout,
                backend=self.backend,
                cache=cache,
            ),
        )
        self.attention_choice = attention.reasons(attends)
        words = F.embedding(input_ids, self.token_embedding)
        x = words + F.embedding(layout.positions, self.position_embedding)
        x = F.dropout(x, config.embedding_dropout, self.training)
        for number, (layer, attend) in enumerate(zip(self.layers, attends, strict=True)):
            x = layer(x, attend, self.attention_tensors.of(number))
        return x

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its last token's state."""
        return last_states(hidden, lengths)


def flops(config: Config, vocab_size: int, lengths: Sequence[int], targets: int) -> float:
    """Return the FLOPs of one training step on a pack; backward takes twice those of forward."""
    width = config.hidden_size
    weights = config.num_layers * 12 * width**2
    attention_products = 2 * width * visible_pairs(config, lengths)
    projection = targets * vocab_size * width
    return 3 * 2 * (sum(lengths) * weights + attention_products + projection)


def _check_settings(settings: Settings, sizes: dict[str, Any]) -> dict[str, Any]:
    if settings["afn"] != "gelu":
        raise ValueError(f"afn is {settings['afn']!r}; GPT-1 has gelu")
    return sizes


_OURS, _THEIRS = "layers.{num_layers}", "transformer.h.{num_layers}"
_CONV1D = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
FORMAT = HfFormat(
    architecture="OpenAIGPTLMHeadModel",
    body="transformer.",
    names={
        "token_embedding": "transformer.tokens_embed.weight",
        "position_embedding": "transformer.positions_embed.weight",
        "attention_tensors": "attention_tensors",
        _OURS: _THEIRS,
        **{f"{_OURS}.{name}": Transposed(f"{_THEIRS}.{name}") for name in _CONV1D},
    },
    copies={"lm_head.weight": "token_embedding"},
    sizes={
        "hidden_size": "n_embd",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "max_positions": "n_positions",
        "norm_eps": "layer_norm_epsilon",
        "embedding_dropout": "embd_pdrop",
        "attention_dropout": "attn_pdrop",
        "residual_dropout": "resid_pdrop",
        "init_std": "initializer_range",
    },
    more_settings=lambda config: {"afn": "gelu"},
    read_config=_check_settings,
)
