"""Settings that GPT-1, GPT-2 and GPT-Neo have in common. Imports no torch."""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Layers, Size
from nlpkit.models.config import AttentionDropout, ModelConfig


class GptConfig(ModelConfig):
    """Sizes of a decoder with learned positions; the defaults are those of the small models."""

    own_kind: ClassVar[str] = "causal"

    hidden_size: Size = Field(768, description="width of the residual stream")
    num_layers: Layers = Field(12, description="number of blocks")
    num_heads: Size = Field(12, description="attention heads")
    max_positions: Size = Field(description="learned positions: the longest sequence")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the layer norms")
    embedding_dropout: float = Field(0.1, ge=0, lt=1, description="on the sum of the embeddings")
    attention_dropout: AttentionDropout = 0.1
    residual_dropout: float = Field(
        0.1, ge=0, lt=1, description="on what attention and feed-forward layers add"
    )
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")


class PreNormGptConfig(GptConfig):
    """Sizes of a decoder with norms before the layers, as GPT-2's."""

    intermediate_size: Size | None = Field(
        None, description="width inside the feed-forward layers; null: 4 hidden_size"
    )
