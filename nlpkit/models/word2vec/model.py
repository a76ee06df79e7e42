"""word2vec: a table of input vectors, and one of output vectors (Mikolov et al. 2013).

N tokens of the pack, M selected rows, K tokens that are scored for a row, S sequences, C width of
the vectors.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.word2vec import VOCABULARY, Config

LORA_TARGETS = ()  # there is no linear layer
FORMAT = own_format(Config, *VOCABULARY)


class Model(OutputHead):
    """The two tables."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.hidden_size))
        self.make_output(vocab_size, config.hidden_size, tie=False, bias=False)
        # As in word2vec.c, InitNet.
        nn.init.uniform_(self.token_embedding, -0.5 / config.hidden_size, 0.5 / config.hidden_size)
        nn.init.zeros_(self.output_table())

    def forward(self, lengths: Sequence[int], input_ids: Tensor) -> Tensor:
        """Return the input vectors (N, C) of the tokens `input_ids` (N,)."""
        return F.embedding(input_ids, self.token_embedding)

    def token_scores(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the products (M, K) of states (M, C) with the output vectors of tokens (M, K)."""
        return torch.einsum("mc,mkc->mk", states, F.embedding(tokens, self.output_table()))

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the mean of the vectors of each sequence, as fastText's classifier.

        Joulin et al. 2016 (arXiv:1607.01759), sec. 2.
        """
        return torch.stack([part.mean(0) for part in hidden.split(list(lengths))])
