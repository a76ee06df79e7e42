"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) over packs, in transformers' layout.

The layers and the way through them are in `layers/modernbert.py`, which its decoder shares.
N tokens of the pack, S sequences, C hidden_size.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nlpkit.models.formats import modernbert_format
from nlpkit.models.formats.modernbert_format import task_head
from nlpkit.models.layers.modernbert import ModernBert
from nlpkit.models.layers.packs import first_states
from nlpkit.models.modernbert import Config

LORA_TARGETS = ("Wqkv",)  # queries, keys and values are one layer
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": task_head("ModernBertForSequenceClassification"),
    "token_classification": task_head("ModernBertForTokenClassification"),
    "question_answering": task_head("ModernBertForQuestionAnswering"),
    "multiple_choice": task_head("ModernBertForMultipleChoice"),
}


class Model(ModernBert):
    """ModernBERT with its head of masked tokens."""

    config: Config

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task, as `pooling` says."""
        if self.config.pooling == "cls":
            return first_states(hidden, lengths)
        return torch.stack([states.mean(0) for states in hidden.split(tuple(lengths))])


_FORMAT = modernbert_format.make_format(Config, "ModernBertForMaskedLM", "head")
FORMAT = replace(
    _FORMAT,
    pipeline="fill-mask",
    sizes={**_FORMAT.sizes, "pooling": "classifier_pooling"},
    defaults={**_FORMAT.defaults, "classifier_pooling": "cls"},
)
