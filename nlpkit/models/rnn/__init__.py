"""Settings of a recurrent network with Elman's cell (Elman 1990), h' = tanh(W x + b + U h + c).

The cell is torch.nn.RNN's, with its two biases. The layout on disk is nlpkit's own.
"""

from typing import ClassVar, Literal

from pydantic import Field

from nlpkit.models.layers import recurrent_config
from nlpkit.models.layers.recurrent_config import Cell, RecurrentConfig

MODEL_TYPE = "rnn"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = recurrent_config.DEFAULT_OBJECTIVE
VOCABULARY = recurrent_config.VOCABULARY


class Config(RecurrentConfig):
    """Sizes of an RNN."""

    CELL: ClassVar[Cell] = "rnn"

    nonlinearity: Literal["tanh", "relu"] = Field("tanh", description="of the cell")
