"""What transformers calls the settings, parameters and task heads of ALBERT."""

from dataclasses import replace

from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.encoder_format import ENCODER

TASK_HEADS = encoder_format.task_heads("Albert")
_LAYER = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "project": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "up": "ffn",
    "down": "ffn_output",
    "output_norm": "full_layer_layer_norm",
}
_FORMAT = replace(
    ENCODER,
    architecture="AlbertForPreTraining",
    body="albert.",
    names={
        **encoder_format.body_names(
            "albert.",
            "{num_groups}.{inner_layers}",
            "encoder.albert_layer_groups.{num_groups}.albert_layers.{inner_layers}",
            _LAYER,
        ),
        "widen": "albert.encoder.embedding_hidden_mapping_in",
        "pooler": "albert.pooler",
        "output_dense": "predictions.dense",
        "output_norm": "predictions.LayerNorm",
        "order_classifier": "sop_classifier.classifier",
    },
    optional=("pooler", "order_classifier"),  # AlbertForMaskedLM has neither
    sizes={
        **ENCODER.sizes,
        "embedding_size": "embedding_size",
        "num_groups": "num_hidden_groups",
        "inner_layers": "inner_group_num",
        "pair_dropout": "classifier_dropout_prob",
    },
    defaults={
        **ENCODER.defaults,
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "classifier_dropout_prob": 0.1,
    },
)
FORMAT = encoder_format.with_decoder(_FORMAT, "predictions.decoder", "predictions.bias")
