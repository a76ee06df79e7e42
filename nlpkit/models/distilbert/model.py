"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108) over packed sequences, in transformers' layout.

BERT's encoder without token types and without a pooler; what attention adds has no dropout.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.contracts.format import HfFormat
from nlpkit.models.distilbert import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.layers.encoder import Embeddings, EncoderModel, Layer, Layers
from nlpkit.models.layers.head import DenseHead, TaskHead

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2


class _Layer(Layer):
    """BERT's layer without dropout on what attention adds."""

    def __init__(self, config: Config):
        super().__init__(config, output_dropout=config.dropout)
        self.dropout = 0.0


class Model(EncoderModel):
    """DistilBERT with its head of masked tokens."""

    config: Config

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width = config.hidden_size
        embeddings = Embeddings(config, width, config.max_positions, types=0)
        super().__init__(config, vocab_size, backend, embeddings)
        self.make_head(config, vocab_size, width, config.hidden_act)
        self.reset_parameters()

    def make_layers(self) -> Layers:
        """Return the layers, each with weights of its own."""
        layers = [_Layer(self.config) for _ in range(self.config.num_layers)]
        return Layers(self.config, (nn.ModuleList(layers), layers))

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        `cache` has keys and values of the earlier tokens, if attention is causal; this call adds
        those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = self.layout(lengths, input_ids, cache)
        return self.encode(layout, input_ids, None, rows=rows, cache=cache)


class ClassifierHead(DenseHead):
    """A dense layer with ReLU, then dropout and the scores: no dropout comes first."""

    activation = staticmethod(F.relu)
    drops_first = False


def _of_two(ending: str) -> TaskHead:
    return TaskHead.of_two(f"DistilBert{ending}", "classifier", "pre_classifier", ClassifierHead)


TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": _of_two("ForSequenceClassification"),
    "token_classification": TaskHead("DistilBertForTokenClassification", "classifier"),
    "question_answering": TaskHead("DistilBertForQuestionAnswering", "qa_outputs"),
    "multiple_choice": _of_two("ForMultipleChoice"),
}
_LAYER = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "project": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
_NAMES = encoder_format.body_names(
    "distilbert.", layer="transformer.layer.{num_layers}", parts=_LAYER
)
del _NAMES["embeddings.type_embedding"]
FORMAT = HfFormat(
    architecture="DistilBertForMaskedLM",
    pipeline="fill-mask",
    body="distilbert.",
    names={
        **_NAMES,
        "output_dense": "vocab_transform",
        "output_norm": "vocab_layer_norm",
        "token_bias": "vocab_projector.bias",
        "output_embedding": "vocab_projector.weight",
    },
    copies={"vocab_projector.weight": "token_embedding"},
    # The names of the first BERTs, which some have kept.
    old_ends=encoder_format.ENCODER.old_ends,
    ignored=("position_ids",),
    sizes={
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_act": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "init_std": "initializer_range",
        "tie": "tie_word_embeddings",
    },
    # What transformers assumes; sinusoidal positions are saved as a table, too.
    defaults={
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    },
)
