"""Settings of LLaMA (Touvron et al. 2023, arXiv:2302.13971) and its kin: Mistral, Qwen2, Qwen3.

A pre-norm decoder with rotary positions, RMS norms and SwiGLU, and with grouped queries (Ainslie et
al. 2023, arXiv:2305.13245). The variants differ in biases, norms of queries and keys, and windows.
The defaults are those of LLaMA's 7B.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Layers, Size
from nlpkit.models.config import check_heads
from nlpkit.models.layers.rotary_config import RotaryDecoderConfig

MODEL_TYPE = "llama"  # transformers' name of the family, in config.json
MORE_MODEL_TYPES = ("mistral", "qwen2", "qwen3")
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding")  # first dimension: vocabulary

# The variants that have a setting, of those that not all have.
HAVE = {
    "attention_bias": ("llama", "qwen3"),
    "mlp_bias": ("llama",),
    "sliding_window": MORE_MODEL_TYPES,
    "full_layers": ("qwen2", "qwen3"),
}


class Config(RotaryDecoderConfig):
    """Sizes of a LLaMA, and which of its kin it is."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset({"full"})

    variant: Literal["llama", "mistral", "qwen2", "qwen3"] = Field(
        "llama",
        description="llama; mistral: may have windows; qwen2: biases of queries, keys and values; "
        "qwen3: norms of queries and keys. The name in transformers",
    )
    num_key_heads: Size | None = Field(
        None, description="heads of keys and values, each for several of queries; null: num_heads"
    )
    head_dim: Size | None = Field(None, description="width of a head; null: hidden_size / heads")
    attention_bias: bool = Field(False, description="llama, qwen3: biases in all of attention")
    mlp_bias: bool = Field(False, description="llama: biases in the feed-forward layers")
    sliding_window: Size | None = Field(
        None, description="mistral, qwen2, qwen3: tokens seen to the left, the token included"
    )
    full_layers: int = Field(
        0, ge=0, description="qwen2, qwen3: first layers that see more than the window"
    )
    passes: Layers = Field(
        1, description="how often all layers run, with the same weights; over 1 not transformers'"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        for name, variants in HAVE.items():
            if self.variant not in variants and not self.is_default(name):
                raise ValueError(
                    f"{name}: variant {self.variant} does not have it, but {', '.join(variants)}"
                )
        if self.variant == "llama":  # with head_dim, too
            check_heads(self.num_heads, self.hidden_size)
        if self.width_per_head % 2:
            raise ValueError(f"heads are {self.width_per_head} wide; rotary positions need pairs")
        if self.num_heads % self.key_heads:
            raise ValueError(
                f"num_key_heads: {self.key_heads} does not divide num_heads {self.num_heads}"
            )
        return self

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_heads or self.num_heads

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Causal attention, from layer `full_layers` on within the window, if there is one."""
        causal, full = AttentionChoice.of("causal"), min(self.full_layers, self.num_layers)
        if self.sliding_window is None or full == self.num_layers:
            return (causal,)
        near = AttentionChoice.of("local_window", window=self.sliding_window)
        return (causal,) * full + (near,) * (self.num_layers - full) if full else (near,)

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        if self.sliding_window is not None:  # it would have no effect
            return "model.sliding_window says what each layer sees; remove it, or attention"
        return super().refuses_attention(choice)
