"""A family without a vocabulary, as one of images."""

from pydantic import Field

from nlpkit.config import FrozenConfig

MODEL_TYPE = "test-plain"
DEFAULT_OBJECTIVE = "clm"
VOCABULARY = ()


class Config(FrozenConfig):
    """Sizes."""

    hidden_size: int = Field(4, description="width")
