"""LSTM over packed sequences, built on torch.nn.LSTM; see `models/layers/recurrent.py`."""

from nlpkit.models.layers import recurrent
from nlpkit.models.layers.recurrent import RecurrentModel, recurrent_format
from nlpkit.models.lstm import Config

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent_format(Config)
Model = RecurrentModel
