"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108) over packed sequences, in transformers' layout.

BERT's encoder without token types and without a pooler; what attention adds has no dropout.
"""

from functools import partial

import torch.nn.functional as F

from nlpkit.contracts.format import HfFormat
from nlpkit.models.distilbert import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import Layer, Layers, UntypedEncoder
from nlpkit.models.layers.head import DenseHead

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2


class _Layer(Layer):
    """BERT's layer without dropout on what attention adds."""

    def __init__(self, config: Config):
        super().__init__(config, output_dropout=config.dropout)
        self.dropout = 0.0


class _Layers(Layers):
    make_layer = _Layer


class Model(UntypedEncoder):
    """DistilBERT with its head of masked tokens."""

    make_layers = _Layers

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width = config.hidden_size
        embeddings = Embeddings(config, width, config.max_positions, types=0)
        super().__init__(config, vocab_size, backend, embeddings)
        self.make_head(config, vocab_size, width, config.hidden_act)
        self.reset_parameters()


_CLASSIFIER = partial(DenseHead, activation=F.relu, drops_first=False)
TASK_HEADS = encoder_format.task_heads("DistilBert", "pre_classifier", _CLASSIFIER)
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
    fixed={"is_causal": False},
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
