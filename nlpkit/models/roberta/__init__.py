"""Settings of RoBERTa, BERT's encoder trained on masked tokens alone (Liu et al. 2019).

The defaults are the paper's base model.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import RobertaConfig

MODEL_TYPE = "roberta"  # transformers' name of the family, in config.json
MORE_MODEL_TYPES = ("xlm-roberta", "camembert")  # the same model with another vocabulary
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(RobertaConfig):
    """Sizes of a RoBERTa; the vocabulary's comes from the tokenizer."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids",)
    CAN: ClassVar[tuple[str, ...]] = ()  # no pairs: all tokens are of the first type

    type_vocab_size: Size = Field(1, description="token types; only the first one is used")
