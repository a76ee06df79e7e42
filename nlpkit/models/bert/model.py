"""BERT (Devlin et al. 2018, arXiv 1810.04805) over packed sequences, in transformers' layout.

Post-norm layers on the sum of token, position and type embeddings. One head predicts masked tokens
by the table of the input; another, on the pooled first state, says whether the second text follows
the first.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.models import encoder, encoder_format
from nlpkit.models.bert import Config
from nlpkit.models.head import TaskHead
from nlpkit.models.hf_format import HfFormat

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("BertForSequenceClassification", "classifier"),
    "token_classification": TaskHead("BertForTokenClassification", "classifier"),
    "question_answering": TaskHead("BertForQuestionAnswering", "qa_outputs"),
    "multiple_choice": TaskHead("BertForMultipleChoice", "classifier"),
}


class Model(encoder.TransformedHead):
    """BERT with its two heads."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.embeddings = encoder.Embeddings(config, width, config.max_positions)
        blocks = [encoder.Layer(config) for _ in range(config.num_layers)]
        self.layers = encoder.Layers(config, nn.ModuleList(blocks), blocks)
        self.pooler = nn.Linear(width, width)
        self.make_head(config, vocab_size, width, config.hidden_act)
        self.next_sentence = nn.Linear(width, 2)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, init_std) with torch's current generator; set biases to 0."""
        encoder.initialize(self.named_parameters(), self.config.init_std)

    @property
    def attention_choice(self) -> str:
        """The backends of the last forward pass, with their reasons, for the log."""
        return self.layers.attention_choice

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor | None = None,
        first: Tensor | None = None,
        last: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Args:
            input_ids: (N,) int64.
            token_type_ids: (N,) int64: which text of its sequence a token is in.
            position_ids: (N,) int64; default: from 0 in each sequence.
            first: (N,) int64: the first position that a token sees, for attention `seen_range`;
                default: it sees all of its sequence, as in a task.
            last: (N,) int64: the last one.
            rows: (M,) int64, in the order of the pack: the result is the states of these tokens
                alone, (M, C).

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = encoder.layout_within(lengths, self.config.max_positions, input_ids.device)
        words = F.embedding(input_ids, self.token_embedding)
        positions = layout.positions if position_ids is None else position_ids
        x = self.embeddings(words, positions, token_type_ids)
        if first is None or last is None:
            first, last = torch.zeros_like(layout.positions), layout.token_lengths - 1
        ranges = {"first": first, "last": last} if self.config.ranges else {}
        return self.layers(x, layout, self.backend, ranges, rows)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its first state, pooled."""
        return torch.tanh(self.pooler(encoder.first_states(hidden, lengths)))

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2): scores that the second text follows the first, and that it does not."""
        return self.next_sentence(self.summary(hidden, lengths))


_DECODER = "cls.predictions.decoder"
FORMAT = HfFormat(
    architecture="BertForPreTraining",
    pipeline="fill-mask",
    body="bert.",
    names={
        **encoder_format.body_names("bert."),
        **encoder_format.decoder_names("cls.predictions.bias", _DECODER),
        "pooler": "bert.pooler.dense",
        "output_dense": "cls.predictions.transform.dense",
        "output_norm": "cls.predictions.transform.LayerNorm",
        "next_sentence": "cls.seq_relationship",
    },
    copies=encoder_format.decoder_copies(_DECODER),
    # BertForMaskedLM has neither.
    optional=("pooler", "next_sentence"),
    old_ends=encoder_format.OLD_ENDS,
    ignored=("position_ids",),
    sizes=encoder_format.SIZES,
    defaults=encoder_format.DEFAULTS,
    read_config=encoder_format.check_settings,
    join=encoder_format.join,
    split=encoder_format.split,
)
