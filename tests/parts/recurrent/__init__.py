"""A recurrent language model: an LSTM over token embeddings (Hochreiter and Schmidhuber 1997)."""

from pydantic import Field

from nlpkit.models.config import ModelConfig

MODEL_TYPE = "test-recurrent"
DEFAULT_OBJECTIVE = "clm"
VOCABULARY = ("token_embedding",)


class Config(ModelConfig):
    """Sizes; a sequence may have any length."""

    visibility = "causal"

    hidden_size: int = Field(32, gt=0, description="width of embeddings and states")
    num_layers: int = Field(1, gt=0, description="LSTM layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on the last states")
