"""What every model family offers: a light module for recipes, and `model.py`, which computes.

N tokens of a pack, M rows of it, C model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nlpkit.models.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nlpkit.models.hf_format import HfFormat


class Family(Protocol):
    """`models/NAME/__init__.py`, or the package of a dotted name. Importable without torch."""

    Config: type[ModelConfig]  # the sizes, the kinds of attention, and what the family can do
    MODEL_TYPE: str  # transformers' name of the family, `model_type` in config.json
    DEFAULT_OBJECTIVE: str  # of a checkpoint that does not name its own
    VOCABULARY: tuple[str, ...]  # parameters whose first dimension is the vocabulary; may be empty


class FamilyModel(Protocol):
    """`models/NAME/model.py`.

    Where transformers has a sequence classifier of the family, it may name it: `CLASSIFIER`, its
    class, and `CLASSIFIER_NAMES`, what the class calls the layer of a task: `head.weight` and, if
    it has a bias, `head.bias`. Without names it is `score.weight`, without a bias.
    """

    Model: type[nn.Module]  # called with (config, vocab_size, backend); see `Model` below
    FORMAT: HfFormat  # how transformers calls settings and parameters
    LORA_TARGETS: tuple[str, ...]  # linear layers that get adapters by default

    def flops(self, config: Any, vocab_size: int, lengths: Sequence[int], targets: int) -> float:
        """Return the multiplications and additions of one training step on a pack."""


class Model(Protocol):
    """The `nn.Module` of a family; its parameters are those that `FORMAT.names` has."""

    def forward(self, lengths: Sequence[int], **inputs: Any) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`."""

    def token_loss(
        self, hidden: Tensor, index: Tensor, targets: Tensor, loss_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy at rows `index` (M,), and each one's, detached."""

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), what stands for each sequence in a task."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (M, V) for hidden states (M, C)."""
