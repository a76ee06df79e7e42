"""Settings of GPT-2, a pre-norm decoder with learned positions (Radford et al. 2019).

GPT-3 (Brown et al. 2020, arXiv:2005.14165) is the same model with 2,048 positions, whose layers
alternate between dense and locally banded attention: `attention: {layers: [{kind: causal},
{kind: local_window}]}` in a recipe. The defaults are those of the smallest GPT-2.

GLM (Du et al. 2022, arXiv:2103.10360) is the same model with `attention: {kind: prefix}`, which
brings the table of its second position.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Layers, Size
from nlpkit.models.layers.gpt_config import PreNormGptConfig

MODEL_TYPE = "gpt2"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding",)  # first dimension: vocabulary


class Config(PreNormGptConfig):
    """Sizes of a GPT-2."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset({"context", "full"})

    max_positions: Size = Field(1024, description="learned positions: the longest sequence")
    passes: Layers = Field(
        1, description="how often all layers run, with the same weights; over 1 not transformers'"
    )

    @property
    def capabilities(self) -> frozenset[str]:
        """See `ModelConfig`; GLM's positions are given."""
        found = super().capabilities
        return found | {"given_positions"} if "prefix" in found else found
