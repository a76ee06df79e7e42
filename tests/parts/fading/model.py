"""`tests.parts.recurrent`, its last states scaled by 1 + what is left of the run.

The scale stands for whatever a model may do with the progress of its run: it is easy to see.
"""

from collections.abc import Sequence

from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.models.formats.hf_format import own_format
from tests.parts.fading import Config
from tests.parts.recurrent import model as recurrent

LORA_TARGETS = ()
FORMAT = own_format(Config, "token_embedding", "lstm")


class Model(recurrent.Model):
    """The LSTM; `told` are the values of `progress` that it was given, for tests."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend)
        self.told: list[tuple[bool, float]] = []

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        progress: float = 1.0,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C); a model in use is at the end of its run."""
        self.told.append((self.training, progress))
        return super().forward(lengths, input_ids, cache) * (2 - progress)
