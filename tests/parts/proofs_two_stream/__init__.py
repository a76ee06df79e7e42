"""A model of two streams, as XLNet's: contents, and queries that do not see their own token."""

from pydantic import Field

from nlpkit.models.config import ModelConfig

MODEL_TYPE = "proofs-two-stream"
DEFAULT_OBJECTIVE = "tests.parts.proofs_plm"
VOCABULARY = ("token_embedding",)


class Config(ModelConfig):
    """Sizes."""

    inputs = ("input_ids", "rank")
    visibility = "bidirectional"

    hidden_size: int = Field(32, gt=0, description="width of both streams")
    num_layers: int = Field(2, gt=0, description="blocks, which both streams share")
    max_positions: int = Field(64, gt=0, description="learned positions: the longest sequence")
