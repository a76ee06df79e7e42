"""Settings of Longformer, RoBERTa's encoder for long documents (Beltagy et al. 2020).

The defaults are the paper's base model.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import TEXT_FIELDS, RobertaConfig

MODEL_TYPE = "longformer"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary
KIND = "longformer"  # of attention, whose global tokens have projections of their own here


class Config(RobertaConfig):
    """Sizes of a Longformer; the vocabulary's comes from the tokenizer."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = TEXT_FIELDS
    # A single type, too: the types tell attention which tokens are global.
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    CAN: ClassVar[tuple[str, ...]] = ("pairs",)

    max_positions: Size = Field(4096, description="learned positions: the longest sequence")

    @property
    def capabilities(self) -> frozenset[str]:
        """See `EncoderConfig`; with a single type, too."""
        return super().capabilities | {"pairs"}

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """The paper's window of 512 tokens, and the first token of a sequence is global."""
        return (AttentionChoice.of(KIND, causal=False),)

    @property
    def has_default_attention(self) -> bool:
        """Whether transformers computes the windows: it has no dilation, and is told of globals."""
        return all(choice.kind == KIND and choice.config.dilations == (1,) for choice in self.kinds)

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        if self._with_defaults(choice).visibility != "bidirectional":
            return "its global tokens see both sides, and so do all others"
        return super().refuses_attention(choice)
