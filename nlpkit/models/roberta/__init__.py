"""Settings of RoBERTa, BERT's encoder trained on masked tokens alone (Liu et al. 2019).

The defaults are the paper's base model. The model is in `model.py`, so that a recipe is checked
without torch.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.config import Size
from nlpkit.models.layers.encoder_config import EncoderConfig

MODEL_TYPE = "roberta"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "mlm"  # of a checkpoint that names no objective
# Parameters whose first dimension is the vocabulary.
VOCABULARY = ("token_embedding", "token_bias", "output_embedding")


class Config(EncoderConfig):
    """Sizes of a RoBERTa; the vocabulary's comes from the tokenizer."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids",)
    CAN: ClassVar[tuple[str, ...]] = ()  # no pairs: all tokens are of the first type
    task_tokens: ClassVar[tuple[str, str, str]] = ("<s>", "</s>", "</s>")
    delimiters: ClassVar[int] = 2  # Liu et al. 2019 put </s></s> between two texts
    mask_token: ClassVar[str] = "<mask>"

    type_vocab_size: Size = Field(1, description="token types; only the first one is used")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the layer norms")
    padding_idx: int = Field(
        1, ge=0, description="id of the padding token; positions are counted from the number after"
    )

    @property
    def position_rows(self) -> int:
        """The rows of the table of positions; those up to `padding_idx` are of no token."""
        return self.max_positions + self.padding_idx + 1
