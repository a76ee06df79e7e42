"""ALBERT (Lan et al. 2019, arXiv 1909.11942) over packed sequences, in transformers' layout.

BERT with embeddings of width E, which a linear layer makes C wide, and with layers that share their
weights. One head predicts masked tokens; another, on the pooled first state, says whether two texts
are in their order.
N tokens of the pack, M selected rows, S sequences, C hidden_size, E embedding_size, V vocabulary.

As in transformers, what the feed-forward layers add has no dropout.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.models.albert import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.encoder_format import ENCODER
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import Layer, Layers, TypedEncoder

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = encoder_format.task_heads("Albert")


class Model(TypedEncoder):
    """ALBERT with its two heads."""

    config: Config

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        narrow = config.embedding_size
        embeddings = Embeddings(config, narrow, config.max_positions, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings, width=narrow, pooler=True)
        self.make_head(config, vocab_size, narrow, config.hidden_act)
        self.order_classifier = nn.Linear(config.hidden_size, 2)
        self.reset_parameters()

    def make_layers(self, config: Config) -> Layers:
        """Return the layers; those of a group share their weights."""
        groups = [
            [Layer(config, output_dropout=0.0) for _ in range(config.inner_layers)]
            for _ in range(config.num_groups)
        ]
        # The group of each layer as transformers computes it.
        per_group = config.num_layers / config.num_groups
        order = [each for n in range(config.num_layers) for each in groups[int(n / per_group)]]
        return Layers(config, (nn.ModuleList(map(nn.ModuleList, groups)), order))

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2): scores that the two texts are in their order, and that they are not."""
        pooled = self.summary(hidden, lengths)
        dropped = F.dropout(pooled, self.config.pair_dropout, self.training)
        return self.order_classifier(dropped)


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
