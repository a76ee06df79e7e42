"""From hidden states to the vocabulary: what every family that predicts tokens shares.

A family derives its `Model` from `TiedHead` and says here what differs: the table, a bias, layers
before it. It keeps its own parameters, under its own names.
N tokens of the pack, M targets, C hidden_size, E width of the table, V vocabulary.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from nlpkit.models.loss import linear_cross_entropy


class TiedHead(nn.Module):
    """`token_loss` and `logits` of a model whose output table is its `token_embedding`."""

    token_embedding: Tensor  # (V, E)

    def output_bias(self) -> Tensor | None:
        """Return what is added to the logits of every token, (V,), or None."""
        return None

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, E), from hidden states (M, C).

        BERT's head has a linear layer, GELU and a norm here.
        """
        return hidden

    def label_smoothing(self) -> float:
        """Return the share of a target that the training loss spreads over the vocabulary."""
        return 0.0

    def token_loss(
        self, hidden: Tensor, index: Tensor, targets: Tensor, loss_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy of `targets` (M,) at rows `index` (M,) of hidden states
        (N, C), and each token's without gradient.

        Each is multiplied by its weight of `loss_weights` (M,) in the sum. Labels are smoothed in
        training mode alone: held-out perplexity is that of the model.
        """
        return linear_cross_entropy(
            self.output_states(hidden[index]),
            self.token_embedding,
            targets,
            loss_weights,
            bias=self.output_bias(),
            label_smoothing=self.label_smoothing() if self.training else 0.0,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (M, V) for hidden states (M, C)."""
        return F.linear(self.output_states(hidden), self.token_embedding, self.output_bias())
