"""The head of the families whose output may have a table or a bias of its own.

V vocabulary, E width of the table.
"""

import torch
from torch import Tensor, nn

from nlpkit.models.layers.vocabulary_head import TiedHead


class OutputHead(TiedHead):
    """The output table may be one of its own, and a token may have a bias."""

    output_embedding: nn.Parameter | None
    token_bias: nn.Parameter | None

    def make_output(self, vocab_size: int, width: int, *, tie: bool, bias: bool = True) -> None:
        """Add the parameters, without initial values; `width` is that of the table."""
        token_bias = nn.Parameter(torch.empty(vocab_size)) if bias else None
        self.register_parameter("token_bias", token_bias)
        table = None if tie else nn.Parameter(torch.empty(vocab_size, width))
        self.register_parameter("output_embedding", table)

    def output_table(self) -> Tensor:
        return self.token_embedding if self.output_embedding is None else self.output_embedding

    def output_bias(self) -> Tensor | None:
        return self.token_bias
