"""The settings that the families of BERT's kind share. Importable without torch.

Defaults are those of BERT's base model (Devlin et al. 2018, arXiv 1810.04805); a family overrides
what differs.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import Choice
from nlpkit.config import Layers, Size
from nlpkit.models.config import POST_NORM_RATE, ModelConfig, check_heads


class EncoderConfig(ModelConfig):
    """Sizes of a post-norm encoder; the vocabulary's comes from the tokenizer."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    pairs: ClassVar[bool] = True
    rate_share: ClassVar[float] = POST_NORM_RATE
    summary_first: ClassVar[bool] = True
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    hidden_size: Size = Field(768, description="width of the residual stream")
    num_layers: Layers = Field(12, description="number of layers")
    num_heads: Size = Field(12, description="attention heads")
    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")
    max_positions: Size = Field(512, description="learned positions: the longest sequence")
    type_vocab_size: Size = Field(2, description="token types: texts of a sequence")
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
