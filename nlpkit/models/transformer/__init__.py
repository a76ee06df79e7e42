"""Settings of the original Transformer, an encoder and a decoder (Vaswani et al. 2017).

The defaults are those of the paper's base model (arXiv:1706.03762, table 3).
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import Choice
from nlpkit.config import Layers, Size
from nlpkit.models.config import POST_NORM_RATE, ModelConfig, SourceVocabulary, check_heads

MODEL_TYPE = "marian"  # transformers' name of the same model, in config.json
DEFAULT_OBJECTIVE = "seq2seq"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")


class Config(ModelConfig):
    """Sizes of encoder and decoder; the recipe's `attention` is the decoder's own."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "source_ids", "source_lengths")
    encodes_source: ClassVar[bool] = True
    label_smoothing: ClassVar[float] = 0.1  # sec. 5.4
    rate_share: ClassVar[float] = POST_NORM_RATE

    hidden_size: Size = Field(512, description="width of the residual stream")
    num_layers: Layers = Field(
        6, description="layers of the decoder, and of the encoder by default"
    )
    encoder_layers: Layers | None = Field(
        None, description="layers of the encoder; null: num_layers"
    )
    num_heads: Size = Field(8, description="attention heads")
    intermediate_size: Size = Field(2048, description="width inside the feed-forward layers")
    max_positions: Size = Field(512, description="the longest source and the longest target")
    positions: Literal["sinusoidal", "learned"] = Field(
        "sinusoidal", description="positions by sines and cosines, or two learned tables"
    )
    hidden_act: Literal["relu", "gelu", "gelu_new", "swish"] = Field(
        "relu", description="activation, as transformers names it"
    )
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on the embeddings and on what the layers add"
    )
    attention_dropout: float = Field(
        0.0, ge=0, lt=1, description="on the attention probabilities; not every backend can"
    )
    scale_embedding: bool = Field(
        True, description="whether embeddings are multiplied by sqrt(hidden_size) (sec. 3.4)"
    )
    tie: bool = Field(True, description="whether one table serves for input and output")
    output_bias: bool = Field(False, description="whether each token has a bias in the output")
    source_vocab_size: SourceVocabulary = None

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        check_heads(self.num_heads, self.hidden_size)
        return self

    @property
    def encoder_depth(self) -> int:
        """The layers of the encoder."""
        return self.encoder_layers or self.num_layers

    @property
    def default_attention(self) -> tuple[Choice, ...]:
        """Each token of the target sees itself and those before it."""
        return (Choice.of("causal"),)

    def refuses_attention(self, choice: Choice) -> str | None:
        """Return why the decoder cannot have this kind of attention, or None."""
        if choice.visibility != "causal":
            return "the decoder needs a kind that sees nothing to the right"
        return super().refuses_attention(choice)
