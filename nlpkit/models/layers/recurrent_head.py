"""The output of recurrent models: the table of embeddings again, or one of its own.

E embedding_size, C width of the states, V vocabulary.
"""

from torch import Tensor, nn

from nlpkit.models.layers.vocabulary_head import OutputHead


class RecurrentHead(OutputHead):
    """A tied table of another width than the states is reached through `output_projection`."""

    def make_recurrent_output(
        self, vocab_size: int, states: int, embeddings: int, tied: bool, init_std: float
    ) -> None:
        """Make the parameters of the output, and draw both tables; the widths are C and E."""
        self.make_output(vocab_size, states, tie=tied)
        self.output_projection = None
        if tied and states != embeddings:
            self.output_projection = nn.Linear(states, embeddings, bias=False)
        assert self.token_bias is not None
        nn.init.zeros_(self.token_bias)
        for table in (self.token_embedding, self.output_embedding):
            if table is not None:
                nn.init.normal_(table, std=init_std)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return hidden states (M, C), as wide as the output table."""
        project = self.output_projection
        return hidden if project is None else project(hidden)
