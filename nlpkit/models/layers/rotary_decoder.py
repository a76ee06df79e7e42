"""A decoder of pre-norm blocks with rotary positions: LLaMA and GPT-NeoX add their blocks."""

import torch
from torch import Tensor

from nlpkit.attention import Attend
from nlpkit.models.layers.rotary import Rotation
from nlpkit.models.layers.rotary_config import RotaryDecoderConfig
from nlpkit.models.layers.stack import Stack

SIZES = {  # our settings with transformers' names
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "tie": "tie_word_embeddings",
    "attention_dropout": "attention_dropout",
    "init_std": "initializer_range",
}
DEFAULTS = {"tie_word_embeddings": False, "attention_dropout": 0.0, "initializer_range": 0.02}


class RotaryDecoder(Stack):
    """A decoder in which attention turns queries and keys."""

    config: RotaryDecoderConfig

    def turn(self, attends: list[Attend], places: Tensor, dtype: torch.dtype) -> list[Attend]:
        """Return the attention of each layer, which turns its queries and keys."""
        rotation = Rotation(self.config.rope, self.config.rotary_channels, places, dtype)
        return [rotation.of(attend) for attend in attends]
