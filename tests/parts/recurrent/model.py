"""An LSTM over packs: never padded, its state kept in generation.

N tokens of the pack, S sequences of at most T tokens, C hidden_size, L layers.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.request import Layout
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.packs import last_states
from nlpkit.models.layers.vocabulary_head import TiedHead
from tests.parts.recurrent import Config

LORA_TARGETS = ()
FORMAT = own_format(Config, "token_embedding", "lstm")


class Model(TiedHead):
    """Embeddings, the LSTM, and the table of embeddings again as the output."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.hidden_size))
        nn.init.normal_(self.token_embedding, std=0.1)
        self.lstm = nn.LSTM(config.hidden_size, config.hidden_size, config.num_layers)

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Sequences go on from their states (L, S, C) in the `cache`, which has S first.
        """
        layout = attention.layout_of(lengths, input_ids.device, cache)
        kept = cache.state("lstm") if cache is not None else {}
        x = F.embedding(input_ids, self.token_embedding)
        x = F.dropout(x, self.config.dropout, self.training)
        order, sizes = _time_first(layout)
        before = (kept["h"].transpose(0, 1), kept["c"].transpose(0, 1)) if kept else None
        longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        rows = torch.tensor(longest_first, device=x.device)
        if before is not None:
            before = tuple(part[:, rows].contiguous() for part in before)
        states, (h, c) = self.lstm(PackedSequence(x[order], sizes), before)
        hidden = torch.empty_like(states.data).index_copy(0, order, states.data)
        if cache is not None:
            back = rows.argsort()
            kept["h"], kept["c"] = (part[:, back].transpose(0, 1) for part in (h, c))
        return F.dropout(hidden, self.config.dropout, self.training)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C): the last state of each sequence."""
        return last_states(hidden, lengths)


def _time_first(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the places (N,) of all first tokens, then all second ones, …; and how many each (T,).

    The longest sequence is first among them, as torch wants its `PackedSequence`.
    """
    spans = sorted(layout.spans, key=lambda span: span[0] - span[1])
    order, sizes = [], []
    for step in range(max(layout.lengths)):
        here = [start + step for start, stop in spans if start + step < stop]
        order += here
        sizes.append(len(here))
    return torch.tensor(order, device=layout.device), torch.tensor(sizes)
