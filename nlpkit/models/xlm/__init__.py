"""Settings of XLM, a post-norm encoder with embeddings of languages (Lample and Conneau 2019).

The defaults are the sizes of the paper's models for many languages (arXiv 1901.07291, sec. 5.1).
The model is in `model.py`, so that a recipe is checked without torch.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nlpkit.attention.choice import Choice
from nlpkit.config import Layers, Size
from nlpkit.models.config import POST_NORM_RATE, ModelConfig, check_heads

MODEL_TYPE = "xlm"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")


class Config(ModelConfig):
    """Sizes of an XLM; the vocabulary's comes from the tokenizer."""

    given_positions: ClassVar[bool] = True
    rate_share: ClassVar[float] = POST_NORM_RATE
    capability_settings: ClassVar[tuple[str, ...]] = ("num_languages",)
    # Token types mean words in transformers, so texts of a task have none.
    pairs: ClassVar[bool] = False
    summary_first: ClassVar[bool] = True
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    hidden_size: Size = Field(
        1024, description="width of the residual stream; feed-forward layers are 4 times this"
    )
    num_layers: Layers = Field(12, description="number of layers")
    num_heads: Size = Field(8, description="attention heads")
    num_languages: Size = Field(
        2, description="languages, each with an embedding; 1: the model has none"
    )
    max_positions: Size = Field(512, description="positions: the longest sequence")
    sinusoidal: bool = Field(
        False, description="fixed sines and cosines as positions instead of learned ones"
    )
    hidden_act: Literal["gelu", "relu"] = Field("gelu", description="activation")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on the embeddings and on what the layers add"
    )
    attention_dropout: float = Field(
        0.1, ge=0, lt=1, description="on the attention probabilities; not every backend can"
    )
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")
    embedding_std: float = Field(2048**-0.5, gt=0, description="as init_std, of the embeddings")
    tie: bool = Field(True, description="whether one table serves for input and output")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        check_heads(self.num_heads, self.hidden_size)
        return self

    @property
    def intermediate_size(self) -> int:
        """The width inside the feed-forward layers."""
        return 4 * self.hidden_size

    @property
    def languages(self) -> bool:
        """Whether the model tells languages apart."""
        return self.num_languages > 1

    @property
    def default_attention(self) -> tuple[Choice, ...]:
        """Each token sees all tokens of its sequence."""
        return (Choice.of("full"),)
