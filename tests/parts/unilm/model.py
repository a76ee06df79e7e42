"""The model: GPT-1, whose attention reads the objective's `first` and `last`."""

from nlpkit.models.formats.hf_format import own_format
from nlpkit.models.gpt.model import LORA_TARGETS as LORA_TARGETS
from nlpkit.models.gpt.model import Model as Model
from tests.parts.unilm import Config

FORMAT = own_format(
    Config, "token_embedding", "position_embedding", "layers", "attention_tensors"
)  # fmt: skip
