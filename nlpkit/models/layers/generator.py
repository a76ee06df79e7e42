"""What models that tell replaced tokens share: the head of tokens is that of their generator.

The generator predicts masked tokens, the discriminator says of each token whether it is the
generator's (Clark et al. 2020, arXiv 2003.10555). A family derives its `Model` from `Detector`.
N tokens of the pack, M selected rows, M' of a chunk, S sequences, G width of the generator, C of
the discriminator, E width of the embeddings, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nlpkit.models.layers.encoder import TransformedHead
from nlpkit.models.layers.encoder_config import DetectorConfig
from nlpkit.models.layers.packs import first_states, layout_within
from nlpkit.models.layers.vocabulary_head import TiedHead

CHUNK = 256  # rows of logits at a time; probabilities in float64: 256 x 30,000 x 8 bytes = 60 MB


class Detector(TiedHead):
    """A model that has a generator, or is the discriminator alone."""

    config: DetectorConfig
    backend: str
    generator: TransformedHead | None

    def choose_half(self, generates: bool) -> Any:
        """Return what has the `layers` of the generator, or of the discriminator."""
        raise NotImplementedError  # each family's own: a torch module is no abstract class

    def embed(
        self, input_ids: Tensor, positions: Tensor, types: Tensor | None, generates: bool
    ) -> Tensor:
        """Return the first states (N, C) of one of the two models."""
        raise NotImplementedError

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        is_target: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the discriminator's last hidden states (N, C) of a pack, or those of its `rows`.

        With `is_target` (N,) bool, the tokens that the generator is to predict, the states are the
        generator's, (N, G), of a text with masked tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = layout_within(lengths, self.config.max_positions, input_ids.device)
        generates = is_target is not None
        layers = self.choose_half(generates).layers
        x = self.embed(input_ids, layout.positions, token_type_ids, generates)
        states = layers(x, layout, self.backend, rows=rows)
        self.attention_choice = layers.attention_choice
        return states

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, E), from the generator's states (M, G)."""
        half = self.generator
        return super().output_states(hidden) if half is None else half.output_states(hidden)

    def output_table(self) -> Tensor:
        return super().output_table() if self.generator is None else self.generator.output_table()

    def output_bias(self) -> Tensor | None:
        return super().output_bias() if self.generator is None else self.generator.output_bias()

    @torch.no_grad()
    def sample_tokens(
        self, hidden: Tensor, index: Tensor, uniform: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Return tokens (M,) that the generator draws at rows `index` (M,); no gradient.

        `hidden` (N, G) are its states, `uniform` (M,) has a number from 0 to 1 for each draw.
        """
        states, table = self.output_states(hidden[index]), self.output_table()
        return sample(states, table, uniform, bias=self.output_bias(), temperature=temperature)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its first state."""
        return first_states(hidden, lengths)


def sample(
    states: Tensor,
    weight: Tensor,
    uniform: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return a token (M,) int64 for each row, drawn from the softmax of its logits.

    The logits are `states @ weight.T + bias`, divided by `temperature`, from states (M, C) in the
    compute type, weight (V, C) and bias (V,). A token is the inverse of the cumulative distribution
    at a number of `uniform` (M,), from 0 to 1, so that the same numbers give the same tokens in
    every pack and process, but for rounding.
    """
    compute = weight.to(states.dtype)
    tokens = torch.empty(len(states), dtype=torch.long, device=states.device)
    for start in range(0, len(states), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = (states[rows] @ compute.T).double()  # (M', V)
        if bias is not None:
            logits += bias
        below = (logits / temperature).softmax(1).cumsum(1)
        # The last sum may differ from 1 by rounding.
        wanted = uniform[rows, None].double() * below[:, -1:]
        tokens[rows] = torch.searchsorted(below, wanted, right=True).squeeze(1)
    return tokens.clamp_(max=len(weight) - 1)
