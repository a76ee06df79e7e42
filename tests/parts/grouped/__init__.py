"""GPT-2 whose keys and values have fewer heads than its queries (Ainslie et al. 2023)."""

from pydantic import Field

from nlpkit.models import gpt2

MODEL_TYPE = "parts-grouped"
DEFAULT_OBJECTIVE = "clm"
VOCABULARY = ("token_embedding",)


class Config(gpt2.Config):
    """GPT-2's sizes, and the heads of keys and values."""

    num_key_heads: int = Field(1, ge=1, description="heads of keys and values")
