"""`models/NAME/model.py`: the model of a family and its names in transformers.

N tokens of a pack, M selected rows, S sequences, C model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nlpkit.contracts.format import HfFormat

if TYPE_CHECKING:
    from torch import Tensor, nn


class FamilyModel(Protocol):
    """The module with a family's `Model`."""

    Model: type[nn.Module]  # called with (config, vocab_size, backend); see `Model` below
    FORMAT: HfFormat  # transformers' names of settings and parameters
    LORA_TARGETS: tuple[str, ...]  # linear layers that get adapters by default
    # transformers' models of the family with a task's layer, by the kind of task (`TaskHead` in
    # `models/layers/head.py`). Other layers are `score.weight`, without a bias.
    TASK_HEADS: Mapping[str, Any] = {}


class Model(Protocol):
    """The `nn.Module` of a family; `FORMAT.names` lists its parameters.

    It, or a module in it, may have the optional table `MATRICES`, the parameters below it that
    multiply hidden states, with the number of matrices that lie one below the other in each:
    `{"c_attn.weight": 3}`; 0: none. It is for what the rule of `models/matrices.py` does not see.
    """

    def forward(self, lengths: Sequence[int], **inputs: Any) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Optional is the argument `rows`, (M,) in the order of the pack: the result is then the
        states (M, C) of these tokens, and no others are computed where that saves time. Scores of
        texts use it, and objectives whose loss reads the states of some tokens alone.
        """

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task."""


class LanguageModel(Model, Protocol):
    """The `nn.Module` of a family with a vocabulary."""

    def token_loss(
        self,
        hidden: Tensor,
        index: Tensor,
        targets: Tensor,
        loss_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy at rows `index` (M,), and the losses (M,), detached.

        In training mode labels are smoothed by `label_smoothing`.
        """

    def token_losses(self, hidden: Tensor, index: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropies (M,) at rows `index` (M,), each with its gradient.

        `targets` are tokens (M,) or probabilities (M, V).
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (M, V) for hidden states (M, C)."""


@runtime_checkable
class Aligned(Protocol):
    """The additional methods of a model that tells its attention to a source.

    `layer` is a layer of the decoder, from 1; None: the model's choice.
    """

    def alignments(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        source_ids: Tensor,
        source_lengths: Sequence[int],
        layer: int | None = None,
    ) -> list[Tensor]:
        """Return for each sequence the weights of its source's tokens (S) for its own (T), (T, S).

        Raises:
            ValueError: a model with these settings has no attention to a source, or not this layer.
        """

    def alignment_title(self, layer: int | None = None) -> str:
        """Return what the weights are, for a picture; raise `ValueError` as `alignments` does."""


CONTRACTS = (FamilyModel,)
