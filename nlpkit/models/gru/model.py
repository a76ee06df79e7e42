"""GRU over packed sequences; see `models/layers/recurrent.py`."""

from nlpkit.models.gru import Config
from nlpkit.models.layers import recurrent
from nlpkit.models.layers.recurrent import RecurrentModel, recurrent_format

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent_format(Config)
Model = RecurrentModel
