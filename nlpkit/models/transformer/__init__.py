"""Settings of the original Transformer, an encoder and a decoder (Vaswani et al. 2017).

The defaults are those of the paper's base model (arXiv:1706.03762, table 3).
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.models.layers.encoder_config import PostNormPairConfig

MODEL_TYPE = "marian"  # transformers' name of the same model, in config.json
DEFAULT_OBJECTIVE = "seq2seq"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(PostNormPairConfig):
    """Sizes of encoder and decoder."""

    CAN: ClassVar[tuple[str, ...]] = (*PostNormPairConfig.CAN, "two_vocabularies")
    label_smoothing: ClassVar[float] = 0.1  # sec. 5.4

    positions: Literal["sinusoidal", "learned"] = Field(
        "sinusoidal", description="positions by sines and cosines, or two learned tables"
    )
    scale_embedding: bool = Field(
        True, description="whether embeddings are multiplied by sqrt(hidden_size) (sec. 3.4)"
    )
