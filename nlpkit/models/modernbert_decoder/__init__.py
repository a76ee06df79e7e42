"""Settings of ModernBERT's decoder, as Ettin's (Weller et al. 2025, arXiv 2507.11412).

The same layers, which see nothing to the right.
"""

from nlpkit.models.layers.modernbert_config import ModernBertConfig

MODEL_TYPE = "modernbert-decoder"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")  # first dimension: vocabulary


class Config(ModernBertConfig):
    """Sizes of the decoder; the vocabulary's comes from the tokenizer."""
