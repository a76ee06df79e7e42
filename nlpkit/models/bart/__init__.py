"""Settings of BART, an encoder and a decoder that learn to rebuild texts (Lewis et al. 2020).

The defaults are those of the paper's base model (arXiv:1910.13461, sec. 2.1); its large one has 12
layers, width 1024, 16 heads and 4096 inside.
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import PostNormPairConfig

MODEL_TYPE = "bart"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "denoising"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(PostNormPairConfig):
    """Sizes of encoder and decoder."""

    mask_token: ClassVar[str] = "<mask>"
    target_tokens: ClassVar[tuple[str, str]] = ("</s>", "</s>")  # in fairseq, too, the end begins

    hidden_size: Size = Field(768, description="width of the residual stream")
    num_heads: Size = Field(12, description="attention heads")
    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")
    max_positions: Size = Field(1024, description="the longest source and the longest target")
    hidden_act: Literal["relu", "gelu", "gelu_new", "swish"] = Field(
        "gelu", description="activation, as transformers names it"
    )
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")

    @property
    def position_rows(self) -> int:
        """The rows of a table of positions; the first two are of no token."""
        return self.max_positions + 2
