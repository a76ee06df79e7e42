"""Settings of a GRU (Cho et al. 2014, arXiv:1406.1078).

By default the cell is torch.nn.GRU's, with its two biases: n = tanh(W x + b + r (U h + c)),
h' = (1 - z) n + z h. `reset: before` is the cell of Cho et al. (eq. 8) and of many textbooks, whose
reset gate comes before the matrix, n = tanh(W x + b + U (r h) + c): another function of the same
weights. That they swap z and 1 - z is a matter of names, since σ(-a) = 1 - σ(a). The layout on disk
is nlpkit's own.
"""

from typing import ClassVar

from pydantic import Field

from nlpkit.models.layers import recurrent_config
from nlpkit.models.layers.recurrent_config import RESET_OF_GRU, Cell, RecurrentConfig, Reset

MODEL_TYPE = "gru"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = recurrent_config.DEFAULT_OBJECTIVE
VOCABULARY = recurrent_config.VOCABULARY


class Config(RecurrentConfig):
    """Sizes of a GRU."""

    CELL: ClassVar[Cell] = "gru"

    reset: Reset = Field("after", description=RESET_OF_GRU)
