"""Settings of GPT-NeoX (Black et al. 2022, arXiv:2204.06745) and Pythia (Biderman et al. 2023).

A pre-norm decoder whose attention and feed-forward layer read the same states, with rotary
positions in a quarter of each head. The defaults are those of Pythia's 6.9B.
"""

from pydantic import Field, model_validator

from nlpkit.config import Size
from nlpkit.models.config import Activation
from nlpkit.models.layers.rotary_config import RotaryDecoderConfig

MODEL_TYPE = "gpt_neox"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding")  # first dimension: vocabulary


class Config(RotaryDecoderConfig):
    """Sizes of a GPT-NeoX."""

    intermediate_size: Size = Field(16384, description="width inside the feed-forward layers")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the layer norms")
    hidden_act: Activation = "gelu"
    rotary_share: float = Field(
        0.25, gt=0, le=1, description="share of a head's channels that turn"
    )
    parallel: bool = Field(
        True, description="whether the feed-forward layer reads what attention reads, not its sum"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.rotary_channels < 2 or self.rotary_channels % 2:
            raise ValueError(
                f"rotary_share: {self.rotary_share} of {self.width_per_head} channels are "
                f"{self.rotary_channels}; rotary positions need pairs"
            )
        return self

    @property
    def rotary_channels(self) -> int:
        """How many channels of a head turn, the first ones."""
        return int(self.width_per_head * self.rotary_share)
