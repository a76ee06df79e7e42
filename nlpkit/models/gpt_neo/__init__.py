"""Settings of GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715), a GPT-3 made anew.

A GPT-2 whose layers alternate between attention to all earlier tokens and to a window, with scores
that are not scaled. No paper describes it; its code and the released files do. The defaults are
those of the model with 125 million parameters.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.config import AttentionDropout
from nlpkit.models.layers.alternating_config import AlternatingConfig
from nlpkit.models.layers.gpt_config import PreNormGptConfig

MODEL_TYPE = "gpt_neo"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding",)  # first dimension: vocabulary


class Config(AlternatingConfig, PreNormGptConfig):
    """Sizes of a GPT-Neo."""

    default_types: ClassVar[tuple[bool, ...]] = (True, False)
    default_window: ClassVar[int] = 256

    max_positions: Size = Field(2048, description="learned positions: the longest sequence")
    embedding_dropout: float = Field(0.0, ge=0, lt=1, description="on the sum of the embeddings")
    attention_dropout: AttentionDropout = 0.0
    residual_dropout: float = Field(
        0.0, ge=0, lt=1, description="on what attention and feed-forward layers add"
    )
