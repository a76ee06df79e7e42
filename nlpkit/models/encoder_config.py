"""The settings that the families of BERT's kind share. Importable without torch.

Defaults are those of BERT's base model (Devlin et al. 2018, arXiv 1810.04805); a family overrides
what differs.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.contract import Choice
from nlpkit.models.config import ModelConfig, check_heads


class EncoderConfig(ModelConfig):
    """Sizes of a post-norm encoder; the vocabulary's comes from the tokenizer."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    pairs: ClassVar[bool] = True
    summary_first: ClassVar[bool] = True
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    hidden_size: int = Field(768, gt=0, description="width of the residual stream")
    num_layers: int = Field(12, gt=0, description="number of layers")
    num_heads: int = Field(12, gt=0, description="attention heads")
    intermediate_size: int = Field(3072, gt=0, description="width inside the feed-forward layers")
    max_positions: int = Field(512, gt=0, description="learned positions: the longest sequence")
    type_vocab_size: int = Field(2, gt=0, description="token types: texts of a sequence")
    hidden_act: Literal["gelu", "relu", "gelu_new"] = Field(
        "gelu", description="activation, as transformers names it; gelu_new: the tanh form of gelu"
    )
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on the embeddings and on what the layers add"
    )
    attention_dropout: float = Field(
        0.1, ge=0, lt=1, description="on the attention probabilities; not every backend can"
    )
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    tie: bool = Field(True, description="whether one table serves for input and output")

    @model_validator(mode="after")
    def _consistent(self) -> "EncoderConfig":
        check_heads(self.num_heads, self.hidden_size)
        return self

    @property
    def default_attention(self) -> tuple[Choice, ...]:
        """Each token sees all tokens of its sequence."""
        return (Choice.of("full"),)
