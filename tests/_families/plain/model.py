"""One layer."""

from torch import nn

from nlpkit.contracts.format import HfFormat
from tests._families.plain import Config

LORA_TARGETS = ("patches",)


class Model(nn.Module):
    """No more than its parameters."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        self.vocab_size = vocab_size
        self.patches = nn.Linear(3, config.hidden_size)


FORMAT = HfFormat("Plain", names={"patches": "embed.patches"}, sizes={"hidden_size": "width"})
