"""Settings of XLNet, an encoder of two streams with relative positions (Yang et al. 2019).

The defaults are the paper's base model.
"""

from typing import ClassVar

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Layers, Size
from nlpkit.models.config import POST_NORM_RATE, Activation, ModelConfig

MODEL_TYPE = "xlnet"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "plm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias")  # their first dimension is the vocabulary


class Config(ModelConfig):
    """Sizes of an XLNet; the vocabulary's comes from the tokenizer."""

    CAN: ClassVar[tuple[str, ...]] = ("pairs", "languages", "two_streams")  # no head for pairs
    capability_settings: ClassVar[tuple[str, ...]] = ("memory",)
    rate_share: ClassVar[float] = POST_NORM_RATE
    # Nothing before the texts; after the last one <sep> and <cls> (Yang et al. 2019, sec. 2.4).
    task_tokens: ClassVar[tuple[str, str, str]] = ("", "<sep>", "<sep>")
    summary_token: ClassVar[str] = "<cls>"
    mask_token: ClassVar[str] = "<mask>"

    hidden_size: Size = Field(768, description="width of both streams")
    num_layers: Layers = Field(12, description="number of layers")
    num_heads: Size = Field(12, description="attention heads")
    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")
    hidden_act: Activation = "gelu"
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on embeddings, probabilities and what the layers add"
    )
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    max_distance: int | None = Field(
        None, ge=1, description="greater distances of two tokens count as this one; null: no limit"
    )

    memory: int = Field(
        0,
        ge=0,
        description="tokens before a part of a long sequence that it sees, without gradient; the "
        "objective cuts sequences into parts (objective.part_length)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size: {self.hidden_size} is odd; half of it are sines")
        return self

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token sees the tokens of its sequence that are not after it in the order."""
        return (AttentionChoice.of("relative", max_distance=self.max_distance, memory=self.memory),)

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs that `forward` requires: with a memory, where the parts of sequences begin."""
        required = ("input_ids", "token_type_ids")
        return (*required, "part_start") if self.memory else required

    def for_task(self) -> "Config":
        """Return the settings of the model that a task tunes: it reads each sequence at once."""
        return self.model_copy(update={"memory": 0})

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        if choice.kind != "relative":
            return "only attention relative tells the positions of this family's tokens"
        for name in ("max_distance", "memory"):  # the kind that is named takes the place of ours
            own, named = getattr(self, name), getattr(choice.config, name)
            if own and own != named:
                other = f"attention.{name} {named or 'null'}"
                return f"model.{name} is {own}, and {other}; remove the section attention"
        return super().refuses_attention(choice)
