"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) over packs, in transformers' layout.

The layers are in `layers/modernbert.py`, which its decoder shares.
N tokens of the pack, S sequences, C hidden_size.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.modernbert_format import make_format, task_head
from nlpkit.models.layers.modernbert import ModernBert
from nlpkit.models.layers.packs import first_states
from nlpkit.models.modernbert import Config

LORA_TARGETS = ("Wqkv",)  # queries, keys and values are one layer
# They begin as the head of masked tokens, which has their names there.
_BEGIN_AS = {"dense": "output_dense", "norm": "output_norm"}
TASK_HEADS = {  # transformers' models with a task's layer
    kind: task_head(head.architecture, begin_as=_BEGIN_AS)
    for kind, head in encoder_format.task_heads("ModernBert").items()
}


class Model(ModernBert):
    """ModernBERT with its head of masked tokens."""

    config: Config
    projections = ("Wqkv",)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task, as `pooling` says."""
        if self.config.pooling == "cls":
            return first_states(hidden, lengths)
        return torch.stack([states.mean(0) for states in hidden.split(tuple(lengths))])


_FORMAT = make_format(Config, "ModernBertForMaskedLM", "head")
FORMAT = replace(
    _FORMAT,
    sizes={**_FORMAT.sizes, "pooling": "classifier_pooling"},
    defaults={**_FORMAT.defaults, "classifier_pooling": "cls"},
)
