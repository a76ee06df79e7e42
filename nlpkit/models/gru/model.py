"""GRU over packed sequences; see `models/layers/recurrent.py`."""

from nlpkit.models.gru import Config
from nlpkit.models.layers import recurrent

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent.recurrent_format(Config)
Model = recurrent.RecurrentModel
