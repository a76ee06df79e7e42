"""XLM (Lample and Conneau 2019, arXiv 1901.07291) over packed sequences, in transformers' layout.

BERT's layers on the sum of token, position and language embeddings. The head of masked tokens is
the table of the input with a bias, and nothing before it. Without `langs` no language is added, as
in transformers: so it is in tasks.
N tokens of the pack, M selected rows, S sequences, C hidden_size, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.models.layers.embeddings import sinusoids
from nlpkit.models.layers.encoder import EncoderModel
from nlpkit.models.layers.packs import dropout
from nlpkit.models.xlm import Config, names

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS


class Embeddings(nn.Module):
    """The sum of word, position and language embeddings, under a norm and dropout."""

    position_embedding: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.config, width = config, config.hidden_size
        positions = torch.empty(config.max_positions, width)
        if config.sinusoidal:
            self.register_buffer("position_embedding", positions)
        else:
            self.position_embedding = nn.Parameter(positions)
        self.language_embedding = None
        if config.num_languages > 1:
            self.language_embedding = nn.Parameter(torch.empty(config.num_languages, width))
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def reset_parameters(self) -> None:
        """Draw the tables from N(0, embedding_std); positions are sines where they are fixed."""
        if self.config.sinusoidal:
            table = self.position_embedding
            sines, cosines = sinusoids(*table.shape).tensor_split(2, 1)  # here they take turns
            table[:, 0::2], table[:, 1::2] = sines, cosines
        for parameter in self.parameters(recurse=False):
            nn.init.normal_(parameter, std=self.config.embedding_std)

    def forward(self, words: Tensor, positions: Tensor, langs: Tensor | None) -> Tensor:
        """Return (N, C) from the words' embeddings (N, C); `positions`, `langs` (N,) int64."""
        x = words + F.embedding(positions, self.position_embedding)
        if langs is not None and self.language_embedding is not None:
            x = x + F.embedding(langs, self.language_embedding)
        return dropout(self.norm(x), self.config.dropout, self.training)


class Model(EncoderModel):
    """XLM with its head of masked tokens."""

    config: Config
    embeddings: Embeddings

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, Embeddings(config))
        self.make_output(vocab_size, config.hidden_size, tie=config.tie)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights with torch's current generator; set biases to 0."""
        super().reset_parameters()
        nn.init.normal_(self.token_embedding, std=self.config.embedding_std)
        self.embeddings.reset_parameters()

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        langs: Tensor | None = None,
        position_ids: Tensor | None = None,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        `langs` (N,) int64 are the languages of tokens, by default of none; `position_ids` are by
        default from 0 in each sequence. `cache` has keys and values of the earlier tokens, if
        attention is causal; this call adds those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = self.layout(lengths, input_ids, cache)
        return self.encode(layout, input_ids, langs, positions=position_ids, rows=rows, cache=cache)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return the hidden states (M, C): nothing stands before the table."""
        return hidden
