"""LSTM over packed sequences, built on torch.nn.LSTM; see `models/recurrent.py`."""

from nlpkit.models import recurrent
from nlpkit.models.lstm import Config
from nlpkit.models.recurrent import RecurrentModel, recurrent_format

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent_format(Config)
Model = RecurrentModel
