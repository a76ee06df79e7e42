"""Settings of GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715), a GPT-3 made anew.

A GPT-2 whose layers alternate between attention to all earlier tokens and to a window, with scores
that are not scaled. No paper describes it; its code and the released files do. The defaults are
those of the model with 125 million parameters.
"""

from collections.abc import Sequence

from pydantic import Field

from nlpkit.attention.choice import AttentionChoice
from nlpkit.config import Size
from nlpkit.models.config import AttentionDropout
from nlpkit.models.layers.gpt_config import PreNormGptConfig

MODEL_TYPE = "gpt_neo"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding",)  # parameters whose first dimension is the vocabulary
LOCAL = "local_window"
WINDOW = 256  # tokens that a local layer sees, the token itself included


class Config(PreNormGptConfig):
    """Sizes of a GPT-Neo."""

    max_positions: Size = Field(2048, description="learned positions: the longest sequence")
    embedding_dropout: float = Field(0.0, ge=0, lt=1, description="on the sum of the embeddings")
    attention_dropout: AttentionDropout = 0.0
    residual_dropout: float = Field(
        0.0, ge=0, lt=1, description="on what attention and feed-forward layers add"
    )

    @staticmethod
    def layer_kinds(types: Sequence[bool], window: int) -> tuple[AttentionChoice, ...]:
        """Return the kinds of layers that see all earlier tokens (True) or a window (False)."""
        local = AttentionChoice.of(LOCAL, window=window)
        return tuple(AttentionChoice.of("causal") if sees_all else local for sees_all in types)

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Layers that see all earlier tokens and layers that see a window, in turn."""
        return self.layer_kinds((True, False), WINDOW)

    @property
    def window(self) -> int:
        """How many tokens the local layers see, the token itself included."""
        return next((kind.config.window for kind in self.kinds if kind.kind == LOCAL), WINDOW)

    @property
    def has_default_attention(self) -> bool:
        """Whether all layers see all earlier tokens or one window."""
        return {*self.kinds} <= {*self.layer_kinds((True, False), self.window)}
