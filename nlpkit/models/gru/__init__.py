"""Settings of a GRU (Cho et al. 2014, arXiv:1406.1078).

The cell is torch.nn.GRU's, with its two biases: n = tanh(W x + b + r (U h + c)),
h' = (1 - z) n + z h. Cho et al. and many textbooks apply the reset gate before the matrix,
tanh(W x + U (r h)): another function. That they swap z and 1 - z is a matter of names, since
σ(-a) = 1 - σ(a). The layout on disk is nlpkit's own.
"""

from typing import ClassVar

from nlpkit.models.layers import recurrent_config
from nlpkit.models.layers.recurrent_config import Cell, RecurrentConfig

MODEL_TYPE = "gru"  # in config.json; transformers has no such family
DEFAULT_OBJECTIVE = recurrent_config.DEFAULT_OBJECTIVE
VOCABULARY = recurrent_config.VOCABULARY


class Config(RecurrentConfig):
    """Sizes of a GRU."""

    CELL: ClassVar[Cell] = "gru"
