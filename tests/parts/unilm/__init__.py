"""A decoder whose tokens see the range of places that the objective says, as UniLM's do."""

from typing import ClassVar

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models import gpt

MODEL_TYPE = "parts-unilm"
DEFAULT_OBJECTIVE = "tests.parts.unilm_mlm"
VOCABULARY = ("token_embedding",)


class Config(gpt.Config):
    """GPT-1's sizes."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset({"first", "last"})
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "first", "last")

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """The ranges that the objective gives."""
        return (AttentionChoice.of("seen_range"),)
