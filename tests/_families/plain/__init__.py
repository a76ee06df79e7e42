"""A family without a vocabulary, as one of images."""

from pydantic import Field

from nlpkit.models.config import ModelConfig

MODEL_TYPE = "test-plain"
DEFAULT_OBJECTIVE = "clm"
VOCABULARY = ()


class Config(ModelConfig):
    """Sizes."""

    hidden_size: int = Field(4, description="width")
