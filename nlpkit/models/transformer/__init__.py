"""Settings of the original Transformer, an encoder and a decoder (Vaswani et al. 2017).

The defaults are those of the paper's base model (arXiv:1706.03762, table 3).
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.config import POST_NORM_RATE, check_heads
from nlpkit.models.layers.encoder_config import EncoderDecoderConfig

MODEL_TYPE = "marian"  # transformers' name of the same model, in config.json
DEFAULT_OBJECTIVE = "seq2seq"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")


class Config(EncoderDecoderConfig):
    """Sizes of encoder and decoder."""

    CAN: ClassVar[tuple[str, ...]] = (*EncoderDecoderConfig.CAN, "two_vocabularies")
    label_smoothing: ClassVar[float] = 0.1  # sec. 5.4
    rate_share: ClassVar[float] = POST_NORM_RATE

    max_positions: Size = Field(512, description="the longest source and the longest target")
    positions: Literal["sinusoidal", "learned"] = Field(
        "sinusoidal", description="positions by sines and cosines, or two learned tables"
    )
    hidden_act: Literal["relu", "gelu", "gelu_new", "swish"] = Field(
        "relu", description="activation, as transformers names it"
    )
    scale_embedding: bool = Field(
        True, description="whether embeddings are multiplied by sqrt(hidden_size) (sec. 3.4)"
    )
    output_bias: bool = Field(False, description="whether each token has a bias in the output")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        check_heads(self.num_heads, self.hidden_size)
        return self

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token of the target sees itself and those before it."""
        return (AttentionChoice.of("causal"),)
