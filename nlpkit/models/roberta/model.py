"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) over packed sequences, in transformers' layout.

BERT's encoder without token types and without a head for pairs. The first token of a sequence has
position `padding_idx` + 1. The head of masked tokens always has GELU.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.models.formats import encoder_format
from nlpkit.models.layers.encoder import Embeddings, EncoderModel
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.positions import count_positions
from nlpkit.models.roberta import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer; its multiple choice reads a pooler
    "sequence_classification": TaskHead.of_two(
        "ForSequenceClassification", "classifier.out_proj", "classifier.dense"
    ),
    "token_classification": TaskHead("ForTokenClassification", "classifier"),
    "question_answering": TaskHead("ForQuestionAnswering", "qa_outputs"),
}


class Model(EncoderModel):
    """RoBERTa with its head of masked tokens."""

    config: Config

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width, rows = config.hidden_size, config.position_rows
        embeddings = Embeddings(config, width, rows, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings)
        self.make_head(config, vocab_size, width, "gelu")
        self.reset_parameters()

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
        positions = count_positions(input_ids, layout, self.config.padding_idx)
        types = torch.zeros_like(input_ids)
        return self.encode(layout, input_ids, types, positions=positions, rows=rows, cache=cache)


FORMAT = encoder_format.make_roberta("roberta.", "RobertaForMaskedLM")
