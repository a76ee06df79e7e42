"""Settings of GPT-1, a post-norm decoder with learned positions (Radford et al. 2018).

The defaults are the paper's.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.config import POST_NORM_RATE
from nlpkit.models.layers.gpt_config import GptConfig

MODEL_TYPE = "openai-gpt"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding",)  # first dimension: vocabulary


class Config(GptConfig):
    """Sizes of a GPT-1; feed-forward layers have width 4 C."""

    rate_share: ClassVar[float] = POST_NORM_RATE

    max_positions: Size = Field(512, description="learned positions: the longest sequence")
