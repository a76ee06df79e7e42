"""The layout that the families of BERT's kind share in transformers: names of settings and layers.

The output table of an untied model is the tensor that otherwise repeats the input's. There the
bias that counts is the decoder's; the other one is not used.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.models.layers.encoder_config import EncoderConfig
from nlpkit.models.layers.head import DenseHead, Head, TaskHead

LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "project": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}
_UNTIED_BIAS = "untied_bias"  # stands for `token_bias` in an untied model


def body_names(
    body: str,
    block: str = "{num_layers}",
    layer: str = "encoder.layer.{num_layers}",
    parts: Mapping[str, str] = LAYER,
    half: str = "",
) -> dict[str, str]:
    """Return the names of word embeddings, `embeddings` and `layers`.

    Args:
        body: the prefix of transformers' names, with a dot.
        block: our number of a layer in `layers.blocks`; `layer` is what transformers calls it.
        parts: our names of what is in a layer, with transformers' names.
        half: the prefix of our `layers`, with a dot, in a model of two encoders.
    """
    return {
        "token_embedding": f"{body}embeddings.word_embeddings.weight",
        "embeddings.position_embedding": f"{body}embeddings.position_embeddings.weight",
        "embeddings.type_embedding": f"{body}embeddings.token_type_embeddings.weight",
        "embeddings.norm": f"{body}embeddings.LayerNorm",
        f"{half}layers.attention_tensors": "attention_tensors",
        **{
            f"{half}layers.blocks.{block}.{ours}": f"{body}{layer}.{theirs}"
            for ours, theirs in parts.items()
        },
    }


def with_decoder(form: HfFormat, decoder: str, bias: str) -> HfFormat:
    """Return the format with transformers' layer `decoder`, the output table, and its `bias`."""
    table, own_bias = f"{decoder}.weight", f"{decoder}.bias"
    names = {"token_bias": bias, "output_embedding": table, _UNTIED_BIAS: own_bias}
    copies = {table: "token_embedding", own_bias: "token_bias"}
    return replace(form, names={**form.names, **names}, copies=copies)


def task_heads(
    prefix: str, dense: str = "", kind: Callable[..., Head] = DenseHead
) -> dict[str, TaskHead]:
    """Return transformers' models with a task's layer.

    With `dense`, those that read the summary of a sequence have a layer of this name, as in `kind`.
    """

    def make(end: str) -> TaskHead:
        if dense:
            return TaskHead.of_two(f"{prefix}{end}", "classifier", dense, kind)
        return TaskHead(f"{prefix}{end}", "classifier")

    return {
        "sequence_classification": make("ForSequenceClassification"),
        "token_classification": TaskHead(f"{prefix}ForTokenClassification", "classifier"),
        "question_answering": TaskHead(f"{prefix}ForQuestionAnswering", "qa_outputs"),
        "multiple_choice": make("ForMultipleChoice"),
    }


def _join(config: EncoderConfig, state: State) -> State:
    """Return the state dict with the bias of an untied output table under its other name, too."""
    if config.tie or "token_bias" not in state:
        return state
    return {**state, _UNTIED_BIAS: state["token_bias"].clone()}


def _split(config: EncoderConfig, settings: Settings, state: State) -> State:
    """Return the state dict with the bias that transformers adds in an untied model."""
    if config.tie or _UNTIED_BIAS not in state:
        return state
    rest = {name: tensor for name, tensor in state.items() if name != _UNTIED_BIAS}
    return rest | {"token_bias": state[_UNTIED_BIAS]}


# What a family replaces: its class, the prefix of its body, its names, and what it has more.
ENCODER = HfFormat(
    architecture="",
    pipeline="fill-mask",
    names={},
    # The names of google-bert's files on the hub.
    old_ends={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    ignored=("position_ids",),
    sizes={
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "hidden_act": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
        "tie": "tie_word_embeddings",
    },
    # What transformers assumes where a config.json of the first releases says nothing.
    defaults={
        "hidden_act": "gelu",
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    },
    fixed={
        "position_embedding_type": "absolute",
        "is_causal": False,
        "is_decoder": False,
        "add_cross_attention": False,
    },
    join=_join,
    split=_split,
)


def _read_roberta(settings: Settings, sizes: Values) -> Values:
    limit = settings["max_position_embeddings"] - sizes["padding_idx"] - 1
    return sizes | {"max_positions": limit}


def make_roberta(body: str, architecture: str, parts: Mapping[str, str] = LAYER) -> HfFormat:
    """Return the format of a family with RoBERTa's positions and head of masked tokens."""
    made = replace(
        ENCODER,
        architecture=architecture,
        body=body,
        names={
            **body_names(body, parts=parts),
            "output_dense": "lm_head.dense",
            "output_norm": "lm_head.layer_norm",
        },
        # The pooler of a bare model is in none of its pretraining models.
        ignored=(*ENCODER.ignored, "pooler"),
        sizes={**ENCODER.sizes, "padding_idx": "pad_token_id"},
        defaults={**ENCODER.defaults, "pad_token_id": 1},
        more_settings=lambda config: {"max_position_embeddings": config.position_rows},
        read_config=_read_roberta,
    )
    return with_decoder(made, "lm_head.decoder", "lm_head.bias")
