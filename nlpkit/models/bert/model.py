"""BERT (Devlin et al. 2018, arXiv 1810.04805) over packed sequences, in transformers' layout.

Post-norm layers on the sum of token, position and type embeddings. One head predicts masked tokens
by the table of the input; another, on the pooled first state, says whether the second text follows
the first.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.models.bert import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.encoder_format import ENCODER
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import EncoderModel

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = encoder_format.task_heads("Bert")


class Model(EncoderModel):
    """BERT with its two heads."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width = config.hidden_size
        embeddings = Embeddings(config, width, config.max_positions, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings, pooler=True)
        self.make_head(config, vocab_size, width, config.hidden_act)
        self.next_sentence = nn.Linear(width, 2)
        self.reset_parameters()

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        first: Tensor | None = None,
        last: Tensor | None = None,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        All inputs are (N,) int64. `position_ids` are by default from 0 in each sequence, `first`
        and `last`, the positions that a token sees by attention `seen_range`, those of all of its
        sequence, as in a task. `cache` has keys and values of the earlier tokens, if attention is
        causal; this call adds those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout, ranges = self.layout(lengths, input_ids, cache), {}
        if self.config.can("ranges") or self.layers.attention_tensors.needs("first"):
            whole = torch.zeros_like(layout.positions), layout.token_lengths - 1
            given = whole if first is None or last is None else (first, last)
            ranges = dict(zip(("first", "last"), given, strict=True))
        return self.encode(
            layout, input_ids, token_type_ids,
            positions=position_ids, fields=ranges, rows=rows, cache=cache,
        )  # fmt: skip

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2): scores that the second text follows the first, and that it does not."""
        return self.next_sentence(self.summary(hidden, lengths))


_FORMAT = replace(
    ENCODER,
    architecture="BertForPreTraining",
    body="bert.",
    names={
        **encoder_format.body_names("bert."),
        "pooler": "bert.pooler.dense",
        "output_dense": "cls.predictions.transform.dense",
        "output_norm": "cls.predictions.transform.LayerNorm",
        "next_sentence": "cls.seq_relationship",
    },
    optional=("pooler", "next_sentence"),  # BertForMaskedLM has neither
)
FORMAT = encoder_format.with_decoder(_FORMAT, "cls.predictions.decoder", "cls.predictions.bias")
