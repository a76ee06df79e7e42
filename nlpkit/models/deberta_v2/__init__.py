"""Settings of DeBERTa-v2 and v3, encoders with disentangled attention (He et al. 2020, 2021).

The defaults are those of v3's base model.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import DetectorConfig

MODEL_TYPE = "deberta-v2"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = (
    "token_embedding", "token_bias", "output_embedding",
    "embedding_delta", "generator.token_embedding", "generator.token_bias",
    "generator.output_embedding",
)  # fmt: skip


class Config(DetectorConfig):
    """Sizes of a DeBERTa and of its generator; the vocabulary's comes from the tokenizer."""

    CAN: ClassVar[tuple[str, ...]] = ("pairs",)  # if it has token types
    padded_vocabulary: ClassVar[bool] = True  # v3 has 128,100 rows for 128,001 tokens
    switch: ClassVar[str] = "generator_layers"
    of_generator: ClassVar[tuple[str, ...]] = ("generator_layers", "embedding_sharing")
    capability_settings: ClassVar[tuple[str, ...]] = ("type_vocab_size", "generator_layers")

    type_vocab_size: int = Field(0, ge=0, description="token types: texts of a sequence; 0: none")
    norm_eps: float = Field(1e-7, gt=0, description="epsilon of the layer norms")
    position_buckets: int = Field(
        256,
        ge=0,
        multiple_of=2,
        description="rows of distances to either side; 0: one for each distance",
    )
    max_distance: Size | None = Field(
        None, description="greater distances of two tokens count as this one; null: max_positions"
    )
    terms: Literal["both", "c2p", "p2c"] = Field(
        "both", description="what depends on the distance: content to position, position to content"
    )
    shared_projections: bool = Field(
        True, description="whether distances have the projections of queries and keys"
    )
    distance_norm: bool = Field(True, description="whether distances have a layer norm")
    absolute_positions: bool = Field(
        False, description="whether the embeddings have learned positions, too"
    )
    generator_layers: float | None = Field(
        None,
        gt=0,
        le=1,
        examples=[0.5],  # the paper's
        description="layers of a generator for `rtd`, as a share of num_layers; it is as wide as "
        "the model; null: no generator",
    )
    embedding_sharing: Literal["gdes", "es"] = Field(
        "gdes",
        description="what the generator's table learns from (He et al. 2021, sec. 3): gdes, its "
        "own loss alone; es, both losses",
    )

    @model_validator(mode="after")
    def _distances_fit(self) -> "Config":
        """The buckets beyond the exact ones must end beyond them: transformers has no limit."""
        exact = self.position_buckets // 2
        if self.max_distance and exact and self.max_distance <= exact + 1 < self.max_positions:
            raise ValueError(
                f"max_distance: {self.max_distance} must be larger than {exact + 1}, half of "
                "position_buckets and 1"
            )
        return self

    @property
    def has_delta(self) -> bool:
        """Whether the discriminator's table is the generator's and what it learns itself."""
        return self.has_generator and self.embedding_sharing == "gdes"

    def generator_config(self) -> "Config":
        """Return the settings of an encoder of the generator's sizes."""
        return self.model_copy(
            update={"num_layers": self.num_generator_layers, "generator_layers": None}
        )

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token sees all tokens of its sequence, by their content and their distance."""
        distances = {
            "buckets": self.position_buckets,
            "max_distance": self.max_distance or self.max_positions,
        }
        choice = AttentionChoice.of("disentangled", causal=False, terms=self.terms, **distances)
        return (choice,)

    @property
    def has_default_attention(self) -> bool:
        """Always: the family takes no other."""
        return True

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        if self._with_defaults(choice) in self.default_attention:
            return None
        return (
            "its attention is disentangled; model.position_buckets, max_distance and terms are "
            "its settings"
        )
