"""BERT's settings: a post-norm encoder of pairs of texts (Devlin et al. 2018, arXiv:1810.04805).

Defaults are those of the paper's base model. The module that computes is `model.py`, apart so that
a recipe can be checked without torch.
"""

from typing import ClassVar

from pydantic import Field, model_validator

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models.config import ModelConfig

MODEL_TYPE = "bert"  # transformers' name of the family, in config.json
DEFAULT_OBJECTIVE = "tests.parts.mlm"  # of a checkpoint that does not name its own
VOCABULARY = ("token_embedding", "token_bias")  # tables whose first dimension is the vocabulary


class Config(ModelConfig):
    """Sizes of a BERT; the vocabulary's comes from the tokenizer."""

    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    CAN: ClassVar[tuple[str, ...]] = ("pairs", "scores_pairs")
    task_tokens: ClassVar[tuple[str, str, str]] = ("[CLS]", "[SEP]", "[SEP]")

    hidden_size: int = Field(768, gt=0, description="width of the residual stream")
    num_layers: int = Field(12, gt=0, description="number of blocks")
    num_heads: int = Field(12, gt=0, description="attention heads")
    intermediate_size: int = Field(3072, gt=0, description="width inside the feed-forward layers")
    max_positions: int = Field(512, gt=0, description="learned positions: the longest sequence")
    type_vocab_size: int = Field(2, gt=0, description="token types: texts of a sequence")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and what layers add")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="on attention probabilities")
    norm_eps: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads: {self.num_heads} does not divide hidden_size {self.hidden_size}"
            )
        return self

    @property
    def default_attention(self) -> tuple[AttentionChoice, ...]:
        """Each token sees all tokens of its sequence."""
        return (AttentionChoice.of("full"),)
