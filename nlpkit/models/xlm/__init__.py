"""Settings of XLM, a post-norm encoder with embeddings of languages (Lample and Conneau 2019).

The defaults are the sizes of the paper's models for many languages (arXiv 1901.07291, sec. 5.1).
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import PostNormConfig

MODEL_TYPE = "xlm"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(PostNormConfig):
    """Sizes of an XLM; token types mean words in transformers, so texts of a task have none."""

    CAN: ClassVar[tuple[str, ...]] = ("given_positions",)
    capability_settings: ClassVar[tuple[str, ...]] = ("num_languages",)

    hidden_size: Size = Field(
        1024, description="width of the residual stream; feed-forward layers are 4 times this"
    )
    num_heads: Size = Field(8, description="attention heads")
    num_languages: Size = Field(
        2, description="languages, each with an embedding; 1: the model has none"
    )
    max_positions: Size = Field(512, description="positions: the longest sequence")
    sinusoidal: bool = Field(
        False, description="fixed sines and cosines as positions instead of learned ones"
    )
    hidden_act: Literal["gelu", "relu"] = Field("gelu", description="activation")
    embedding_std: float = Field(2048**-0.5, gt=0, description="as init_std, of the embeddings")

    @property
    def intermediate_size(self) -> int:
        """The width inside the feed-forward layers."""
        return 4 * self.hidden_size

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | ({"languages"} if self.num_languages > 1 else set())
