"""Settings of an LSTM (Hochreiter and Schmidhuber 1997; with the forget gate of Gers et al. 2000).

The cell is torch.nn.LSTM's, with its two biases, which textbooks often leave out. The layout on
disk is nlpkit's own.
"""

from typing import ClassVar

from nlpkit.models.layers import recurrent_config
from nlpkit.models.layers.recurrent_config import Cell, RecurrentConfig

MODEL_TYPE = "lstm"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = recurrent_config.DEFAULT_OBJECTIVE
VOCABULARY = recurrent_config.VOCABULARY


class Config(RecurrentConfig):
    """Sizes of an LSTM."""

    CELL: ClassVar[Cell] = "lstm"
