"""Settings of CPM-Ant, a pre-norm, bias-free encoder with UniLM's sequence-to-sequence mask.

The defaults are those of CPM-Ant 10B (OpenBMB/CPM-Live, branch cpm-ant). The model is in
`model.py`, so that a recipe is checked without torch.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import FrozenConfig, Layers, Size
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "cpmant"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "cpm_ant"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding",)  # first dimension: vocabulary


class Prompts(FrozenConfig):
    """The block of soft prompts that precedes each kind of example."""

    infilling: int = Field(0, ge=0, description="prompt block of blank filling (random mask)")
    generation: int = Field(1, ge=0, description="prompt block of text generation (tail mask)")


class Config(ModelConfig):
    """Sizes of a CPM-Ant; the tokenizer gives the size of the vocabulary."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "segment", "position", "context")
    instead_of_heads: ClassVar[str] = ", or set head_dim"
    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset(("context", "segment", "position"))

    hidden_size: Size = Field(4096, description="width of the residual stream")
    num_layers: Layers = Field(48, description="number of blocks")
    num_heads: Size = Field(32, description="attention heads")
    head_dim: Size | None = Field(
        None, description="width of a head; default hidden_size / num_heads"
    )
    intermediate_size: Size = Field(10240, description="width of the gated feed-forward layer")
    prompt_types: Size = Field(32, ge=3, description="blocks of soft prompts")
    prompt_length: Size = Field(32, description="soft-prompt vectors in a block")
    prompts: Prompts = Field(default_factory=Prompts, description="which block serves which task")
    segment_types: Size = Field(32, ge=3, description="segments (0 prompt, 1 infilling, 2 text)")
    num_buckets: Size = Field(512, ge=4, multiple_of=4, description="relative-distance buckets")
    max_distance: int = Field(2048, gt=1, description="distance from which all share one bucket")
    norm_eps: float = Field(1e-6, gt=0, description="epsilon of the RMS norms")
    dropout: float = Field(0.0, ge=0, lt=1, description="on attention, feed-forward and residuals")
    init: Literal["scaled", "folded"] = Field(
        "scaled",
        description="initial weights: `scaled` keeps every layer's output at a like size and "
        "trains best at small sizes (docs/lab/cpm_ant.md); `folded` is the original's",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.max_distance <= self.num_buckets // 4:
            raise ValueError(
                f"max_distance: {self.max_distance} must be greater than num_buckets / 4 "
                f"({self.num_buckets // 4})"
            )
        for task in ("infilling", "generation"):
            block = getattr(self.prompts, task)
            if block >= self.prompt_types:
                raise ValueError(
                    f"prompts.{task}: block {block} does not exist; "
                    f"prompt_types is {self.prompt_types}"
                )
        if self.prompts.infilling == self.prompts.generation:
            raise ValueError("prompts: infilling and generation must use different blocks")
        return self

    @property
    def dropout_of_attention(self) -> float:
        return self.dropout

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """CPM-Ant's attention with the sizes of this model, in all layers."""
        sizes = self.model_dump(include={"num_buckets", "max_distance", "segment_types"})
        return (AttentionChoice.of("cpm_ant", **sizes),)

    def refuses_attention(self, choice: AttentionChoice) -> str | None:
        if choice in self.default_attention:
            return None
        return "the family has only its own kind, and the sizes of that kind are settings of model"
