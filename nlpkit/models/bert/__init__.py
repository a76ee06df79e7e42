"""Settings of BERT, a post-norm encoder of pairs of texts (Devlin et al. 2018).

The defaults are the paper's base model.
"""

from typing import ClassVar

from nlpkit.models.layers.encoder_config import TEXT_FIELDS, EncoderConfig

MODEL_TYPE = "bert"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(EncoderConfig):
    """Sizes of a BERT; the vocabulary's comes from the tokenizer."""

    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset({"first", "last"}) | TEXT_FIELDS
    CAN: ClassVar[tuple[str, ...]] = (*EncoderConfig.CAN, "given_positions")
