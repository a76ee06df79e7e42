"""Settings of ELECTRA, an encoder that finds the tokens which a generator replaced.

Clark et al. 2020. The defaults are the paper's base model (table 6).
"""

from typing import ClassVar

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import DetectorConfig

MODEL_TYPE = "electra"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "rtd"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = ("token_embedding", "generator.token_bias", "generator.output_embedding")

HEAD_WIDTH = 64  # of a head of the generator, in the authors' code


class Config(DetectorConfig):
    """Sizes of the discriminator and of the generator; the vocabulary's comes from the tokenizer.

    What is not said of the generator is as in the discriminator.
    """

    CAN: ClassVar[tuple[str, ...]] = ("pairs", "languages")
    switch: ClassVar[str] = "generator_size"
    of_generator: ClassVar[tuple[str, ...]] = (
        "generator_size", "generator_layers", "generator_heads", "generator_intermediate_size",
        "tie",
    )  # fmt: skip
    capability_settings: ClassVar[tuple[str, ...]] = ("type_vocab_size", "generator_size")

    embedding_size: Size | None = Field(
        None,
        description="width of the embeddings, which both models share; if it is not that of a "
        "model, a linear layer is between; default: hidden_size",
    )
    generator_size: float | None = Field(
        0.25,
        gt=0,
        le=1,
        description="width of the generator, as a share of hidden_size: 1/4 to 1/2 is best "
        "(sec. 3.2; the paper's base model has 1/3); null: no generator, as after tuning",
    )
    generator_layers: float = Field(
        1.0, gt=0, le=1, description="layers of the generator, as a share of num_layers"
    )
    generator_heads: Size | None = Field(
        None, description="attention heads of the generator; default: one for a width of 64"
    )
    generator_intermediate_size: Size | None = Field(
        None,
        description="width inside the feed-forward layers of the generator; default: 4 times its "
        "width",
    )

    @model_validator(mode="after")
    def _generator_fits(self) -> "Config":
        width, heads = self.generator_width, self.num_generator_heads
        if width % heads:
            raise ValueError(
                f"generator_size: the generator is {width} wide, which its {heads} heads do not "
                "divide; set generator_heads, or another generator_size"
            )
        return self

    @property
    def capabilities(self) -> frozenset[str]:
        """See `DetectorConfig`; the discriminator alone predicts no tokens either."""
        return super().capabilities - {"predicts_tokens"}

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def generator_width(self) -> int:
        """The width of the generator, as the authors' code rounds it."""
        return max(1, round(self.hidden_size * (self.generator_size or 1.0)))

    @property
    def num_generator_heads(self) -> int:
        """The number of the generator's attention heads."""
        return self.generator_heads or max(1, self.generator_width // HEAD_WIDTH)

    @property
    def generator_inner_size(self) -> int:
        """The width inside the generator's feed-forward layers."""
        return self.generator_intermediate_size or 4 * self.generator_width

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        """Return why one of the two models cannot have this kind of attention, or None."""
        reason = super().refuses_attention(choice)
        if reason or not self.has_generator:
            return reason
        if reason := choice.refuses_heads(self.num_generator_heads):
            return f"{reason} in the generator; set model.generator_heads"
        return None

    def generator_config(self) -> "Config":
        """Return the settings of an encoder of the generator's sizes."""
        sizes = {
            "hidden_size": self.generator_width,
            "num_layers": self.num_generator_layers,
            "num_heads": self.num_generator_heads,
            "intermediate_size": self.generator_inner_size,
            "embedding_size": self.embedding_width,
            "generator_size": None,
        }
        return self.model_copy(update=sizes)
