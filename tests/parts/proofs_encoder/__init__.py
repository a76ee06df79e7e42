"""A GPT-1 that sees both sides, with token types and three more heads: what proofs are tried on."""

from typing import ClassVar

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models import gpt

MODEL_TYPE = "proofs-encoder"
DEFAULT_OBJECTIVE = "tests.parts.proofs_mlm"
VOCABULARY = ("token_embedding",)


class Config(gpt.Config):
    """Sizes; the tokens around a pair are BERT's."""

    CAN: ClassVar[tuple[str, ...]] = ("pairs", "scores_pairs")
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token sees all of its sequence."""
        return (AttentionChoice.of("full"),)
