"""The language-model heads of the families with a vocabulary.

A family derives its `Model` from `TiedHead`, or from `OutputHead` if the output may have a table or
a bias of its own, and overrides the methods that differ.
N tokens of the pack, M targets, C hidden_size, E width of the table, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nlpkit.models.layers.loss import linear_cross_entropy


class TiedHead(nn.Module):
    """`token_loss` and `logits` of a model whose output table is by default `token_embedding`."""

    token_embedding: Tensor  # (V, E)
    z_loss = 0.0  # `train.z_loss`

    def output_table(self) -> Tensor:
        """Return the table of the output, (V, E): that of the input, unless they are not tied."""
        return self.token_embedding

    def output_bias(self) -> Tensor | None:
        """Return the bias of the logits, (V,), or None."""
        return None

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return the states (M, E) that the table multiplies, from hidden states (M, C).

        In BERT's head these are the output of a linear layer, GELU and a norm.
        """
        return hidden

    def token_loss(
        self,
        hidden: Tensor,
        index: Tensor,
        targets: Tensor,
        loss_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy of `targets` (M,), and the losses (M,), detached.

        `index` (M,) are the targets' rows of `hidden` (N, C); `loss_weights` (M,) are the weights
        in the sum. Labels are smoothed, and `z_loss` added, only in training mode, not for held-out
        perplexity.
        """
        return linear_cross_entropy(
            self.output_states(hidden[index]),
            self.output_table(),
            targets,
            loss_weights,
            bias=self.output_bias(),
            label_smoothing=label_smoothing if self.training else 0.0,
            z_loss=self.z_loss if self.training else 0.0,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (M, V) for hidden states (M, C)."""
        return F.linear(self.output_states(hidden), self.output_table(), self.output_bias())


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
        """Return the table of the output, (V, E)."""
        return self.token_embedding if self.output_embedding is None else self.output_embedding

    def output_bias(self) -> Tensor | None:
        """Return the bias of the logits, (V,), or None."""
        return self.token_bias
