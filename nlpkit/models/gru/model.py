"""GRU over packed sequences, built on torch.nn.GRU; see `models/recurrent.py`."""

from nlpkit.models import recurrent
from nlpkit.models.gru import Config
from nlpkit.models.recurrent import RecurrentModel, recurrent_format

LORA_TARGETS = recurrent.LORA_TARGETS
FORMAT = recurrent_format(Config)
Model = RecurrentModel
