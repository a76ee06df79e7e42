"""The model: GPT-1's, with heads for pairs and for replaced tokens.

N tokens of a pack, S sequences, C hidden_size, P max_positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.gpt.model import LORA_TARGETS as LORA_TARGETS
from nlpkit.models.gpt.model import Model as Gpt
from tests.parts.proofs_encoder import Config


class Model(Gpt):
    """GPT-1 with token types, added to what the blocks make, and heads."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend)
        width = config.hidden_size
        self.token_types = nn.Parameter(torch.randn(2, width) * config.init_std)
        self.pair_head = nn.Linear(width, 2)
        self.detect_head = nn.Linear(width, 1)

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return (N, C)."""
        hidden = super().forward(lengths, input_ids)
        if token_type_ids is not None:
            hidden = hidden + F.embedding(token_type_ids, self.token_types)
        return hidden

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2), from the mean of each sequence."""
        return self.pair_head(torch.stack([part.mean(0) for part in hidden.split([*lengths])]))

    def replaced_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (N,)."""
        return self.detect_head(hidden).squeeze(1)


FORMAT = own_format(
    Config, "token_embedding", "position_embedding", "layers", "attention_tensors", "token_types",
    "pair_head", "detect_head",
)  # fmt: skip
