"""GPT-2 (Radford et al. 2019) over packed sequences, in the layout of transformers' `gpt2`.

Pre-norm blocks, x = x + sub(norm(x)), a norm after the last block, learned positions from 0 in
every sequence, GELU in its tanh form, one table for input and output. The layers and the way
through them are in `layers/gpt.py`, which GPT-1 shares.

N tokens of the pack, C hidden_size.
"""

import torch
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, Transposed, Values
from nlpkit.models.gpt2 import Config
from nlpkit.models.layers.gpt import CONV1D, SAVED_MASKS, SIZES, Attention, Decoder, FeedForward
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import Dropout, select_rows

LORA_TARGETS = ("c_attn",)  # queries, keys and values are one layer
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("GPT2ForSequenceClassification", "score", bias=False),
    "token_classification": TaskHead("GPT2ForTokenClassification", "classifier"),
    "question_answering": TaskHead("GPT2ForQuestionAnswering", "qa_outputs"),
}


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.ln_1 = nn.LayerNorm(width, config.norm_eps)
        self.attn = Attention(width, config.num_heads)
        self.ln_2 = nn.LayerNorm(width, config.norm_eps)
        self.mlp = FeedForward(width, config.inner_size)
        self.drop = Dropout(config.residual_dropout)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        attended = self.attn(self.ln_1(x), attend, rows)
        x = select_rows(x, rows) + self.drop(attended)
        return x + self.drop(self.mlp(self.ln_2(x)))


class Model(Decoder):
    """GPT-2 with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, lambda: Block(config))
        self.final_norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        if config.can("prefix"):
            self.span_position_embedding = nn.Parameter(torch.empty_like(self.position_embedding))
        self.reset_parameters()

    def initial_std(self, name: str) -> float:
        """Return 1 / sqrt(layers that add to the residual stream) of `init_std` for these.

        Radford et al. 2019, sec. 2.3; a block has two such layers.
        """
        std = self.config.init_std
        is_residual = name.endswith("c_proj.weight")
        return std / (2 * self.config.num_layers) ** 0.5 if is_residual else std


# transformers computes the same with either name.
_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")


def _more_settings(config: Config) -> Values:
    return {"activation_function": "gelu_new", "n_inner": config.intermediate_size}


def _read_settings(settings: Settings, sizes: Values) -> Values:
    activation = settings.get("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"activation_function is {activation!r}; GPT-2 has {' or '.join(_ACTIVATIONS)}"
        )
    return sizes | {"intermediate_size": settings.get("n_inner")}


_OURS, _THEIRS = "layers.{num_layers}", "transformer.h.{num_layers}"
FORMAT = HfFormat(
    architecture="GPT2LMHeadModel",
    pipeline="text-generation",
    body="transformer.",
    names={
        "token_embedding": "transformer.wte.weight",
        "position_embedding": "transformer.wpe.weight",
        "span_position_embedding": "transformer.wspe.weight",  # GLM's; transformers has none
        "attention_tensors": "attention_tensors",
        "final_norm": "transformer.ln_f",
        _OURS: _THEIRS,
        **{f"{_OURS}.{name}": Transposed(f"{_THEIRS}.{name}") for name in CONV1D},
    },
    copies={"lm_head.weight": "token_embedding"},
    ignored=SAVED_MASKS,
    sizes=SIZES,
    # (`reorder_and_upcast_attn` changes the precision, not the model.)
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    bos_and_eos=True,
    more_settings=_more_settings,
    read_config=_read_settings,
)
