"""GPT-Neo over packed sequences, in the layout of transformers' `gpt_neo`.

GPT-2's blocks (`layers/gpt.py`) with a layer each for queries, keys and values, without bias;
scores are not divided by the square root of a head's width. N tokens of the pack, C hidden_size,
H heads.
"""

from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.formats.hf_reading import check_fixed
from nlpkit.models.gpt_neo import Config
from nlpkit.models.layers.alternating_config import read_types, shorten
from nlpkit.models.layers.gpt import PreNormDecoder, check_activation
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.packs import select_rows

TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("GPTNeoForSequenceClassification", "score", bias=False),
    "token_classification": TaskHead("GPTNeoForTokenClassification", "classifier"),
    "question_answering": TaskHead("GPTNeoForQuestionAnswering", "qa_outputs"),
}
LORA_TARGETS = ("q_proj", "v_proj")


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, hidden_size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).unflatten(1, (self.heads, -1)) for layer in layers)
        return self.out_proj(select_rows(attend(q, k, v).flatten(1), rows))


class Model(PreNormDecoder):
    """GPT-Neo with its language-model head."""

    score_scale = 1.0
    make_attention = Attention


_TYPES = ("global", "local")  # transformers' types of layers


def _more_settings(config: Config) -> Values:
    settings: Values = {"activation_function": "gelu_new"}
    if not config.has_default_attention:
        return settings
    types = [_TYPES[not sees_all] for sees_all in config.layer_types]
    period = len(shorten(config.layer_types))
    if len(types) % period:
        period = len(types)
    repeated = [[types[:period], len(types) // period]]
    return {
        **settings,
        "attention_types": repeated,
        "attention_layers": types,
        "window_size": config.window,
    }


def _read_config(settings: Settings, sizes: Values) -> Values:
    check_activation(settings, "GPT-Neo")
    given = settings.get("attention_types", [])
    try:
        names = [each for period, times in given for _ in range(times) for each in period]
    except (TypeError, ValueError):
        raise ValueError(f"attention_types is {given!r}, not [[[TYPE, …], TIMES], …]") from None
    layers = sizes["num_layers"]
    if not names:  # as with another kind of attention, which nlpkit.json names
        names = settings.get("attention_layers") or [_TYPES[n % 2] for n in range(layers)]
    types = read_types("attention_types", names, _TYPES, layers)
    check_fixed({"attention_layers": names}, settings)
    window = settings.get("window_size", Config.default_window)
    return sizes | {"attention": Config.read_kinds(types, window)}


_OURS, _THEIRS = "layers.{num_layers}", "transformer.h.{num_layers}"
FORMAT = HfFormat(
    architecture="GPTNeoForCausalLM",
    pipeline="text-generation",
    body="transformer.",
    names={
        "token_embedding": "transformer.wte.weight",
        "position_embedding": "transformer.wpe.weight",
        "attention_tensors": "attention_tensors",
        "final_norm": "transformer.ln_f",
        _OURS: _THEIRS,
        f"{_OURS}.attn": f"{_THEIRS}.attn.attention",
    },
    copies={"lm_head.weight": "token_embedding"},
    ignored=("attention.bias", "attention.masked_bias"),  # of earlier versions of transformers
    sizes={
        "hidden_size": "hidden_size",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "norm_eps": "layer_norm_epsilon",
        "embedding_dropout": "embed_dropout",
        "attention_dropout": "attention_dropout",
        "residual_dropout": "resid_dropout",
        "init_std": "initializer_range",
    },
    defaults={"intermediate_size": None},
    fixed={"tie_word_embeddings": True},
    bos_and_eos=True,
    more_settings=_more_settings,
    read_config=_read_config,
)
