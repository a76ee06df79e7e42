"""Settings of DistilBERT, BERT with half of the layers (Sanh et al. 2019, arXiv 1910.01108).

It has no token types and no pooler (sec. 3). The defaults are those of the paper's model, which
was trained with BERT as its teacher.
"""

from pydantic import Field, model_validator

from nlpkit.config import Layers, Size
from nlpkit.models.layers.encoder_config import PostNormConfig

MODEL_TYPE = "distilbert"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary
_EPS = 1e-12


class Config(PostNormConfig):
    """Sizes of a DistilBERT; the vocabulary's comes from the tokenizer."""

    num_layers: Layers = Field(6, description="number of layers")
    intermediate_size: Size = Field(3072, description="width inside the feed-forward layers")

    @model_validator(mode="after")
    def _has_the_epsilon(self) -> "Config":
        if self.norm_eps != _EPS:
            raise ValueError(f"norm_eps: transformers' DistilBERT has {_EPS} only")
        return self
