"""A Transformer with encoder and decoder (Vaswani et al. 2017, arXiv:1706.03762), pre-norm."""

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "test-encoder-decoder"
DEFAULT_OBJECTIVE = "seq2seq"
VOCABULARY = ("token_embedding",)


class Config(ModelConfig):
    """Sizes, the same in encoder and decoder; the recipe's attention is the decoder's own."""

    inputs = ("input_ids", "source_ids", "source_lengths")
    CAN = ("encodes_source",)

    hidden_size: int = Field(32, gt=0, description="width of the residual stream")
    num_layers: int = Field(2, gt=0, description="blocks of the encoder, and of the decoder")
    num_heads: int = Field(2, gt=0, description="attention heads")
    intermediate_size: int = Field(64, gt=0, description="width inside the feed-forward layers")
    max_positions: int = Field(128, gt=0, description="learned positions: the longest sequence")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the layer norms")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and what sublayers add")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide hidden_size")
        return self

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token of the target sees itself and those before it."""
        return (AttentionChoice.of("causal"),)

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        """Return why the decoder cannot have this kind of attention, or None."""
        if choice.visibility != "causal":
            return "the decoder needs a kind that sees nothing to the right"
        return super().refuses_attention(choice)
