"""Settings of ModernBERT, a pre-norm encoder with rotary positions (Warner et al. 2024).

The defaults are the paper's base model.
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.models.layers.modernbert_config import ModernBertConfig

MODEL_TYPE = "modernbert"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(ModernBertConfig):
    """Sizes of a ModernBERT; the vocabulary's comes from the tokenizer."""

    summary_first: ClassVar[bool] = True
    is_causal: ClassVar[bool] = False
    default_window: ClassVar[int] = 65

    pooling: Literal["cls", "mean"] = Field(
        "cls", description="what a task reads of a sequence: its first state, or their mean"
    )
