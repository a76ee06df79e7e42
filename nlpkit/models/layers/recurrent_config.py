"""Settings that the families `rnn`, `lstm` and `gru` share, some of them with `seq2seq`.

The defaults are the medium LSTM of Zaremba et al. 2014 (arXiv:1409.2329), who put dropout on the
connections between layers, never on those in time. Embeddings are tied to the output (Press and
Wolf 2016, arXiv:1608.05859; Inan et al. 2016, arXiv:1611.01462), unless `tie_embeddings` is false.
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.config import Layers, Size
from nlpkit.models.config import ModelConfig

Cell = Literal["rnn", "lstm", "gru"]
Reset = Literal["before", "after"]
RESET_OF_GRU = (
    "when the reset gate of a GRU multiplies the state: before the matrix (Cho et al. 2014) or "
    "after it (torch)"
)
DEFAULT_OBJECTIVE = "clm"  # of a checkpoint that names no objective
VOCABULARY = ("token_embedding", "output_embedding", "token_bias")  # first dimension: vocabulary


class CellsConfig(ModelConfig):
    """Sizes of a model of recurrent cells; a sequence may have any length."""

    rate_share: ClassVar[float] = 2.0  # as in the recipes

    hidden_size: Size = Field(650, description="width of the states of one direction")
    embedding_size: Size | None = Field(
        None, description="width of the token embeddings; null: hidden_size"
    )
    num_layers: Layers = Field(2, description="recurrent layers")
    num_directions: Literal[1, 2] = Field(
        1, description="2: another one reads from the right; their states are concatenated"
    )
    dropout: float = Field(
        0.5, ge=0, lt=1, description="on embeddings, between layers and on the last states"
    )
    tie_embeddings: bool = Field(
        True, description="whether the output table is that of the embeddings"
    )
    init_std: float = Field(
        0.1, gt=0, description="of the embeddings; other weights are drawn as torch does"
    )

    @property
    def input_size(self) -> int:
        """Width of the token embeddings."""
        return self.embedding_size or self.hidden_size


class RecurrentConfig(CellsConfig):
    """Sizes of one network."""

    CELL: ClassVar[Cell]
    capability_settings: ClassVar[tuple[str, ...]] = ("num_directions",)
    width_per_layer: ClassVar[int] = 320

    @property
    def state_size(self) -> int:
        """Width of the states, of both directions together."""
        return self.num_directions * self.hidden_size

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"causal" if self.num_directions == 1 else "bidirectional"}
