"""A model in two halves that are saved apart, with all that a table of names may have to say."""

from pydantic import Field

from nlpkit.models.config import ModelConfig

MODEL_TYPE = "test-halves"
DEFAULT_OBJECTIVE = "clm"
VOCABULARY = ("token_embedding", "token_bias")


class Config(ModelConfig):
    """Sizes."""

    hidden_size: int = Field(4, description="width")
    num_layers: int = Field(2, description="layers")
    dropout: float = Field(0.1, description="nothing")
