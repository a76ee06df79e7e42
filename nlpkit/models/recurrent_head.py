"""The output of recurrent models: the table of embeddings again, or one of its own.

E embedding_size, C width of the states, V vocabulary.
"""

import torch
from torch import Tensor, nn

from nlpkit.models.vocabulary_head import TiedHead


class RecurrentHead(TiedHead):
    """A tied table of another width than the states is reached through `output_projection`."""

    def make_output(
        self, vocab_size: int, states: int, embeddings: int, tied: bool, init_std: float
    ) -> None:
        """Make the parameters of the output, and draw both tables; the widths are C and E."""
        self.output_projection = self.output_embedding = None
        if not tied:
            self.output_embedding = nn.Parameter(torch.empty(vocab_size, states))
        elif states != embeddings:
            self.output_projection = nn.Linear(states, embeddings, bias=False)
        self.token_bias = nn.Parameter(torch.zeros(vocab_size))
        for table in (self.token_embedding, self.output_embedding):
            if table is not None:
                nn.init.normal_(table, std=init_std)

    def output_table(self) -> Tensor:
        """Return the table of the output: (V, E) of the embeddings, or (V, C) of its own."""
        own = self.output_embedding
        return self.token_embedding if own is None else own

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return hidden states (M, C), as wide as the output table."""
        project = self.output_projection
        return hidden if project is None else project(hidden)

    def output_bias(self) -> Tensor:
        """Return the bias of the logits, (V,)."""
        return self.token_bias
