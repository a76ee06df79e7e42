"""The recurrent language model of the families `rnn`, `lstm` and `gru`, over packed sequences.

Embeddings, torch's layers, and the table of embeddings again as the output. With one direction it
is causal, and generation keeps one state of fixed size a layer; with two it is bidirectional, for
tagging, classification and masked language modelling.

N tokens of the pack, S sequences, E embedding_size, C state_size, V vocabulary.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.format import HfFormat
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.packs import dropout, last_states
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent_config import VOCABULARY, RecurrentConfig
from nlpkit.models.layers.recurrent_head import RecurrentHead
from nlpkit.models.layers.recurrent_layers import make_layers, run

LORA_TARGETS = ()  # torch's recurrent layers are no linear layers


class RecurrentModel(RecurrentHead):
    """A recurrent network with its language-model head."""

    def __init__(self, config: RecurrentConfig, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        width, inputs = config.state_size, config.input_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, inputs))
        nonlinearity: Literal["tanh", "relu"] = config.setting("nonlinearity", "tanh")
        self.cells = make_layers(
            config.CELL,
            inputs,
            config.hidden_size,
            num_layers=config.num_layers,
            num_directions=config.num_directions,
            dropout=config.dropout,
            nonlinearity=nonlinearity,
        )
        self.make_recurrent_output(
            vocab_size, width, inputs, config.tie_embeddings, config.init_std
        )

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Return the last layer's states (N, C) for a pack of these `lengths`.

        Args:
            input_ids: (N,) int64.
            cache: the states of all layers; sequences go on from them.

        Raises:
            ValueError: a cache, and states that depend on later tokens.
        """
        if cache is not None and not self.config.causal:
            raise ValueError("states depend on later tokens: nothing can be generated")
        layout = attention.layout_of(lengths, input_ids.device, cache)
        kept = cache.state("cells") if cache is not None else {}
        x = F.embedding(input_ids, self.token_embedding)
        x = dropout(x, self.config.dropout, self.training)
        time = TimeFirst.of(layout.lengths, input_ids.device)
        hidden, states = run(self.cells, x, time, kept)
        if cache is not None:
            kept.update(states)
        return dropout(hidden, self.config.dropout, self.training)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), what stands for each sequence in a task: the end of each direction."""
        last = last_states(hidden, lengths)
        if self.config.num_directions == 1:
            return last
        starts = torch.tensor([0, *lengths[:-1]], device=hidden.device).cumsum(0)
        width = self.config.hidden_size
        return torch.cat([last[:, :width], hidden[starts, width:]], 1)


def recurrent_format(config: type[RecurrentConfig]) -> HfFormat:
    """Return the format of a family: nlpkit's own, since transformers has none of them."""
    return own_format(config, *VOCABULARY, "output_projection", "cells")
