"""GPT-NeoX over packed sequences, in the layout of transformers' `gpt_neox`.

x = x + attention(norm(x)) + feed_forward(other_norm(x)), with biases, and one layer for queries,
keys and values, whose rows are those of head after head. N tokens of the pack, C hidden_size, H
heads, D width of a head.
"""

from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.formats.hf_reading import check_fixed
from nlpkit.models.gpt_neox import Config
from nlpkit.models.layers.encoder import ACTIVATIONS
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import select_rows
from nlpkit.models.layers.rotary_config import find_rope, read_rope, write_rope
from nlpkit.models.layers.rotary_decoder import DEFAULTS, SIZES, RotaryDecoder

LORA_TARGETS = ("query_key_value",)  # queries, keys and values are one layer
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("GPTNeoXForSequenceClassification", "score", bias=False),
    "token_classification": TaskHead("GPTNeoXForTokenClassification", "classifier"),
    "question_answering": TaskHead("GPTNeoXForQuestionAnswering", "qa_outputs"),
}


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        q, k, v = self.query_key_value(x).unflatten(1, (self.heads, -1)).chunk(3, -1)  # (N, H, D)
        return self.dense(select_rows(attend(q, k, v).flatten(1), rows))


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, config: Config):
        super().__init__()
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_h_to_4h = nn.Linear(config.hidden_size, config.intermediate_size)
        self.dense_4h_to_h = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))


class Block(nn.Module):
    """x + attention(norm(x)) + feed_forward(norm(x)), each with its norm."""

    def __init__(self, config: Config):
        super().__init__()
        width, self.parallel = config.hidden_size, config.parallel
        self.input_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.attention = Attention(width, config.num_heads)
        self.post_attention_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        attended = self.attention(self.input_layernorm(x), attend, rows)
        x = select_rows(x, rows)
        both = x + attended
        return both + self.mlp(self.post_attention_layernorm(x if self.parallel else both))


class Model(RotaryDecoder):
    """GPT-NeoX with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, tie=config.tie)
        norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.make_layers((Block(config) for _ in range(config.num_layers)), norm)
        self.reset_parameters()


def _more_settings(config: Config) -> Values:
    rope = write_rope(config.rope)
    return {
        "rotary_emb_base": rope["rope_theta"],
        "rope_scaling": rope["rope_scaling"],
        "rotary_pct": config.rotary_share,
    }


def _read_settings(settings: Settings, sizes: Values) -> Values:
    width = sizes["hidden_size"] // sizes["num_heads"]
    check_fixed({"head_dim": width}, {"head_dim": settings.get("head_dim") or width})
    theta = settings.get("rotary_emb_base", 10000.0)
    given = find_rope(settings).get("partial_rotary_factor"), settings.get("rotary_pct")
    share = next((each for each in given if each is not None), 0.25)
    same = {"gelu_fast": "gelu_new"}  # GPT-NeoX-20B's, another way to compute it
    return sizes | {
        "rope": read_rope({**settings, "rope_theta": theta}),
        "rotary_share": float(share),
        "hidden_act": same.get(sizes["hidden_act"], sizes["hidden_act"]),
    }


FORMAT = HfFormat(
    architecture="GPTNeoXForCausalLM",
    pipeline="text-generation",
    body="gpt_neox.",
    names={
        "token_embedding": "gpt_neox.embed_in.weight",
        "output_embedding": "embed_out.weight",
        "attention_tensors": "attention_tensors",
        "final_norm": "gpt_neox.final_layer_norm",
        "layers.{num_layers}": "gpt_neox.layers.{num_layers}",
    },
    in_memory={"embed_out": "lm_head"},
    copies={"embed_out.weight": "token_embedding"},
    # Saved by earlier versions.
    ignored=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    sizes={
        **SIZES,
        "norm_eps": "layer_norm_eps",
        "hidden_act": "hidden_act",
        "parallel": "use_parallel_residual",
    },
    defaults={**DEFAULTS, "use_parallel_residual": True},
    fixed={"is_causal": True, "attention_bias": True, "hidden_dropout": 0.0},
    bos_and_eos=True,
    more_settings=_more_settings,
    read_config=_read_settings,
)
