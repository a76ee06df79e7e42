"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) over packed sequences, in transformers' layout.

BERT's encoder without token types and without a head for pairs. The first token of a sequence has
position `padding_idx` + 1. The head of masked tokens always has GELU.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.attention.layout import Layout
from nlpkit.models import encoder, encoder_format
from nlpkit.models.head import DenseHead, TaskHead
from nlpkit.models.hf_format import HfFormat, Settings
from nlpkit.models.roberta import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead(
        "RobertaForSequenceClassification",
        "classifier.out_proj",
        kind=DenseHead,
        modules={"dense": "classifier.dense"},
    ),
    "token_classification": TaskHead("RobertaForTokenClassification", "classifier"),
    "question_answering": TaskHead("RobertaForQuestionAnswering", "qa_outputs"),
}


class Model(encoder.TransformedHead):
    """RoBERTa with its head of masked tokens."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        rows = _rows(config)
        self.embeddings = encoder.Embeddings(config, width, rows)
        blocks = [encoder.Layer(config) for _ in range(config.num_layers)]
        self.layers = encoder.Layers(config, nn.ModuleList(blocks), blocks)
        self.make_head(config, vocab_size, width, "gelu")
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
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Args:
            input_ids: (N,) int64.
            rows: (M,) int64, in the order of the pack: the result is the states of these tokens
                alone, (M, C).
            cache: keys and values of the earlier tokens, if attention is causal; this call adds
                those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        limit = self.config.max_positions
        layout = encoder.layout_within(lengths, limit, input_ids.device, cache)
        words = F.embedding(input_ids, self.token_embedding)
        positions = _positions(input_ids, layout, self.config.padding_idx)
        x = self.embeddings(words, positions, torch.zeros_like(input_ids))
        return self.layers(x, layout, self.backend, rows=rows, cache=cache)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its first state."""
        return encoder.first_states(hidden, lengths)


def _rows(config: Config) -> int:
    """Return the length of the table of positions; those up to `padding_idx` are of no token."""
    return config.max_positions + config.padding_idx + 1


def _positions(ids: Tensor, layout: Layout, padding_idx: int) -> Tensor:
    """Return the positions (N,) of transformers: `padding_idx` + 1, + 2, … in each sequence.

    A token with the id `padding_idx`, which is rarely in a text, has the position `padding_idx`
    and is not counted, unless it is in a cache.
    """
    counted = (ids != padding_idx).long()
    total = counted.cumsum(0)
    first = layout.cu_seqlens[:-1].long()
    before = (total - counted)[first]  # those of the sequences before
    past = layout.positions[first]  # tokens of the same sequences in a cache
    return (total + (past - before)[layout.document_ids]) * counted + padding_idx


def _more_settings(config: Config) -> dict[str, Any]:
    return {"max_position_embeddings": _rows(config)}


def _read_config(settings: Settings, sizes: dict[str, Any]) -> dict[str, Any]:
    checked = encoder_format.check_settings(settings, sizes)
    limit = settings["max_position_embeddings"] - checked["padding_idx"] - 1
    return checked | {"max_positions": limit}


_DECODER = "lm_head.decoder"
FORMAT = HfFormat(
    architecture="RobertaForMaskedLM",
    pipeline="fill-mask",
    body="roberta.",
    names={
        **encoder_format.body_names("roberta."),
        **encoder_format.decoder_names("lm_head.bias", _DECODER),
        "output_dense": "lm_head.dense",
        "output_norm": "lm_head.layer_norm",
    },
    copies=encoder_format.decoder_copies(_DECODER),
    old_ends=encoder_format.OLD_ENDS,
    # The pooler of a bare RobertaModel is in none of its pretraining and tuning models.
    ignored=("position_ids", "pooler"),
    sizes={**encoder_format.SIZES, "padding_idx": "pad_token_id"},
    defaults={**encoder_format.DEFAULTS, "pad_token_id": 1},
    more_settings=_more_settings,
    read_config=_read_config,
    join=encoder_format.join,
    split=encoder_format.split,
)
