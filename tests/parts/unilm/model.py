"""The model: GPT-1's blocks, whose attention reads `first` and `last`.

N tokens of a pack, C hidden_size.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from nlpkit import attention
from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.gpt.model import LORA_TARGETS as LORA_TARGETS
from nlpkit.models.gpt.model import Model as Gpt
from tests.parts.unilm import Config


class Model(Gpt):
    """GPT-1 with other masks."""

    def forward(
        self, lengths: Sequence[int], input_ids: Tensor, first: Tensor, last: Tensor
    ) -> Tensor:
        """Return (N, C)."""
        layout = attention.layout_of(lengths, input_ids.device, None)
        layout = layout.with_fields({"first": first, "last": last})
        kinds = self.attention_tensors
        attends = kinds.prepare(kinds.heads_like(self.token_embedding, 0.0, self.backend), layout)
        self.attention_choice = attention.reasons(attends)
        x = F.embedding(input_ids, self.token_embedding)
        x = x + F.embedding(layout.positions, self.position_embedding)
        for number, (layer, attend) in enumerate(zip(self.layers, attends, strict=True)):
            x = layer(x, attend, self.attention_tensors.of(number))
        return x


FORMAT = own_format(
    Config, "token_embedding", "position_embedding", "layers", "attention_tensors"
)  # fmt: skip
