"""What transformers calls the settings, parameters and task heads of XLNet."""

from functools import partial

from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.layers.head import DenseHead, TaskHead
from nlpkit.models.xlnet import Config

# Names of the layer and of the one before it; the model's states have dropout already.
_SUMMARY = "logits_proj", "sequence_summary.summary", partial(DenseHead, drops_first=False)
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead.of_two("XLNetForSequenceClassification", *_SUMMARY),
    "token_classification": TaskHead("XLNetForTokenClassification", "classifier"),
    "question_answering": TaskHead("XLNetForQuestionAnsweringSimple", "qa_outputs"),
    "multiple_choice": TaskHead.of_two("XLNetForMultipleChoice", *_SUMMARY),
}


def _more_settings(config: Config) -> Values:
    return {
        "d_head": config.hidden_size // config.num_heads,
        "clamp_len": config.max_distance or -1,
        "mem_len": config.memory or None,
        # Else outputs have memories, which pipelines cannot tell apart by sequence.
        "use_mems_eval": bool(config.memory),
        "nlpkit": {"memory": config.memory} if config.memory else {},
    }


def _read_settings(settings: Settings, sizes: Values) -> Values:
    limit = settings.get("clamp_len", -1)
    memory = settings.get("nlpkit", {}).get("memory", 0)
    return sizes | {"max_distance": limit if limit > 0 else None, "memory": memory}


_OURS, _THEIRS = "layers.{num_layers}", "transformer.layer.{num_layers}"
_TENSORS = "attention_tensors.layer_{num_layers}"
FORMAT = HfFormat(
    architecture="XLNetLMHeadModel",
    pipeline="text-generation",
    body="transformer.",
    names={
        "token_embedding": "transformer.word_embedding.weight",
        "token_bias": "lm_loss.bias",
        "query_start": "transformer.mask_emb",
        f"{_OURS}.query": f"{_THEIRS}.rel_attn.q",
        f"{_OURS}.key": f"{_THEIRS}.rel_attn.k",
        f"{_OURS}.value": f"{_THEIRS}.rel_attn.v",
        f"{_OURS}.project": f"{_THEIRS}.rel_attn.o",
        f"{_OURS}.attention_norm": f"{_THEIRS}.rel_attn.layer_norm",
        f"{_OURS}.up": f"{_THEIRS}.ff.layer_1",
        f"{_OURS}.down": f"{_THEIRS}.ff.layer_2",
        f"{_OURS}.output_norm": f"{_THEIRS}.ff.layer_norm",
        **{
            f"{_TENSORS}_{name}": f"{_THEIRS}.rel_attn.{name}"
            for name in ("r", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")
        },
    },
    copies={"lm_loss.weight": "token_embedding"},
    ignored=("sequence_summary",),
    sizes={
        "hidden_size": "d_model",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "dropout": "dropout",
        "norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
    },
    defaults={"layer_norm_eps": 1e-12, "initializer_range": 0.02, "dropout": 0.1},
    fixed={
        "attn_type": "bi",
        "bi_data": False,
        "same_length": False,
        "tie_word_embeddings": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    more_settings=_more_settings,
    read_config=_read_settings,
)
