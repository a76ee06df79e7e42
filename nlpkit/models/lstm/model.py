"""LSTM over packed sequences, built on torch.nn.LSTM; see `models/layers/recurrent.py`."""

from nlpkit.models.layers import recurrent
from nlpkit.models.lstm import Config

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent.recurrent_format(Config)
Model = recurrent.RecurrentModel
