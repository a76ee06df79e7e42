"""The blocks of the original Transformer, an encoder and a decoder with norms after the layers.

N tokens of the targets, M of the sources, C hidden_size.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.models.layers import encoder
from nlpkit.models.layers.encoder_config import PostNormPairConfig
from nlpkit.models.layers.encoder_decoder import Attention
from nlpkit.models.layers.packs import Dropout

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
ACTIVATIONS = {**encoder.ACTIVATIONS, "swish": F.silu}


class Block(nn.Module):
    """norm(x + sub(x)) for attention, in the decoder cross attention, and feed-forward."""

    def __init__(self, config: PostNormPairConfig, is_decoder: bool):
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.drop, self.activation = Dropout(config.dropout), ACTIVATIONS[config.hidden_act]
        self.attention = Attention(width, config.num_heads)
        self.attention_norm = nn.LayerNorm(width)
        if is_decoder:
            self.cross = Attention(width, config.num_heads)
            self.cross_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        cross: attention.Attend | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C) from (N, C) and, in the decoder, the encoder's states (M, C)."""
        x = self.attention_norm(x + self.drop(self.attention(x, x, attend)))
        if cross is not None:
            x = self.cross_norm(x + self.drop(self.cross(x, source, cross)))
        return self.output_norm(x + self.drop(self.down(self.activation(self.up(x)))))
