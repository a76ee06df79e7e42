"""Settings of ALBERT: BERT with shared layers and narrow embeddings (Lan et al. 2019).

The defaults are the paper's base model.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from nlpkit.config import Layers, Size
from nlpkit.models.config import Activation, AttentionDropout
from nlpkit.models.layers.encoder_config import TEXT_FIELDS, EncoderConfig

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives

MODEL_TYPE = "albert"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(EncoderConfig):
    """Sizes of an ALBERT; the vocabulary's comes from the tokenizer."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = TEXT_FIELDS

    embedding_size: Size = Field(
        128, description="width of the embeddings; a linear layer makes them hidden_size wide"
    )
    num_groups: Layers = Field(
        1, description="groups of layers in succession that share their weights; 1: all"
    )
    inner_layers: Layers = Field(
        1, description="layers in a group; each of num_layers applies all of them"
    )
    hidden_act: Activation = "gelu_new"
    # Lan et al. 2019, sec. 4.8: dropout hurts.
    dropout: float = Field(
        0.0, ge=0, lt=1, description="on the embeddings and on what attention adds"
    )
    attention_dropout: AttentionDropout = 0.0
    pair_dropout: float = Field(
        0.1, ge=0, lt=1, description="on the pooled state, before the scores of the order of texts"
    )

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> Mapping[str, str]:
        if any("scores_pairs" in made.needs for made in objectives):
            return {}
        return {"pair_dropout": "without an objective on the order of texts, such as sop"}

    @model_validator(mode="after")
    def _groups_fit(self) -> "Config":
        if self.num_groups > self.num_layers:
            raise ValueError(
                f"num_groups: {self.num_groups} is more than num_layers {self.num_layers}; "
                "a group would not be used"
            )
        return self
