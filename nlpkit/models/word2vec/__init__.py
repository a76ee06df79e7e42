"""Settings of word2vec's two tables (Mikolov et al. 2013, arXiv:1301.3781 and arXiv:1310.4546).

Each token has an input vector, which is its state, and an output vector, which predicts it. No
state depends on another token. The layout on disk is nlpkit's own.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "word2vec"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = "word2vec"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding")  # first dimension: vocabulary


class Config(ModelConfig):
    """The size of the vectors."""

    CAN: ClassVar[tuple[str, ...]] = ("context_free",)

    hidden_size: Size = Field(100, description="width of the vectors")
