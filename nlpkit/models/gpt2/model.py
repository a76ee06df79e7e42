"""GPT-2 (Radford et al. 2019) over packed sequences, in the layout of transformers' `gpt2`.

Pre-norm blocks, x = x + sub(norm(x)), a norm after the last block, learned positions from 0 in
every sequence, GELU in its tanh form, one table for input and output. The layers are in
`layers/gpt.py`, which GPT-1 and GPT-Neo share, the pass through them in `layers/stack.py`.
"""

from nlpkit.contracts.format import HfFormat, Settings, Transposed, Values
from nlpkit.models.gpt2 import Config
from nlpkit.models.layers.gpt import CONV1D, SAVED_MASKS, SIZES, PreNormDecoder, check_activation
from nlpkit.models.layers.head import TaskHead

LORA_TARGETS = ("c_attn",)  # queries, keys and values are one layer
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("GPT2ForSequenceClassification", "score", bias=False),
    "token_classification": TaskHead("GPT2ForTokenClassification", "classifier"),
    "question_answering": TaskHead("GPT2ForQuestionAnswering", "qa_outputs"),
}


class Model(PreNormDecoder):
    """GPT-2 with its language-model head."""

    def initial_std(self, name: str) -> float:
        """Return 1 / sqrt(layers that add to the residual stream) of `init_std` for these.

        Radford et al. 2019, sec. 2.3; a block has two such layers in each pass.
        """
        std = self.config.init_std
        is_residual = name.endswith("c_proj.weight")
        depth = self.config.num_layers * self.config.setting("passes", 1)
        return std / (2 * depth) ** 0.5 if is_residual else std


def _more_settings(config: Config) -> Values:
    settings: Values = {"activation_function": "gelu_new", "n_inner": config.intermediate_size}
    # Without an architecture, transformers does not open it as the family's.
    only_ours = {"passes": config.passes, "architectures": []}
    return settings if config.passes == 1 else settings | only_ours


def _read_settings(settings: Settings, sizes: Values) -> Values:
    check_activation(settings, "GPT-2")
    own = {"intermediate_size": settings.get("n_inner"), "passes": settings.get("passes", 1)}
    return sizes | own


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
        "is_causal": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    bos_and_eos=True,
    more_settings=_more_settings,
    read_config=_read_settings,
)
