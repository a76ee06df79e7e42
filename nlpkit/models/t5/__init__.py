"""Settings of T5, an encoder and a decoder with relative positions (Raffel et al. 2020).

The defaults are those of T5 small in version 1.0 (arXiv:1910.10683); version 1.1 is `gated: true`,
`hidden_act: gelu_new`, `tie: false`.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.config import AttentionDropout
from nlpkit.models.layers.encoder_config import EncoderDecoderConfig

MODEL_TYPE = "t5"  # transformers' name of the family, in config.json
MORE_MODEL_TYPES = ("mt5",)  # T5 1.1 with the vocabulary of 101 languages
DEFAULT_OBJECTIVE = "span_corruption"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding")  # first dimension: vocabulary


class Config(EncoderDecoderConfig):
    """Sizes of encoder and decoder; sequences may have any length."""

    padded_vocabulary: ClassVar[bool] = True

    head_dim: Size = Field(64, description="width of a head, whatever the hidden_size")
    num_buckets: Size = Field(32, ge=4, description="buckets of distances, each with a bias")
    max_distance: int = Field(128, ge=2, description="distance from which all share a bucket")
    hidden_act: Literal["relu", "gelu", "gelu_new", "silu"] = Field(
        "relu", description="activation, as transformers names it; gelu_new in version 1.1"
    )
    gated: bool = Field(
        False, description="whether a second layer multiplies the activation, as in version 1.1"
    )
    tie: bool = Field(
        True,
        description="whether one table serves for input and output, whose states are then divided "
        "by sqrt(hidden_size); false in version 1.1",
    )
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on embeddings, inside and after the layers, on last states"
    )
    attention_dropout: AttentionDropout = 0.1
    norm_eps: float = Field(1e-6, gt=0, description="epsilon of the norms")
    init_factor: float = Field(1.0, gt=0, description="of the deviation of all initial weights")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        for name in ("relative_bias", "relative_bias_causal"):  # their settings are checked
            self._kind(name)
        if self.gated and self.hidden_act == "gelu":
            raise ValueError(
                "hidden_act: gelu with gated has no name in transformers, where gated-gelu is the "
                "tanh form; set gelu_new"
            )
        return self

    @property
    def encoder_attention(self) -> AttentionChoice:
        """Each token of the source sees all of them, with a bias for their distance."""
        return self._kind("relative_bias")

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token of the target sees itself and those before it, with a bias."""
        return (self._kind("relative_bias_causal"),)

    def _kind(self, name: str) -> AttentionChoice:
        return AttentionChoice.of(
            name, num_buckets=self.num_buckets, max_distance=self.max_distance
        )
