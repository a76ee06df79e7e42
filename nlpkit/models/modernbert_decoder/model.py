"""ModernBERT's decoder (Weller et al. 2025, arXiv 2507.11412) over packs, in transformers' layout.

The layers and the way through them are in `layers/modernbert.py`, which ModernBERT shares.
N tokens of the pack, C hidden_size.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from nlpkit.models.formats import modernbert_format
from nlpkit.models.formats.modernbert_format import task_head
from nlpkit.models.layers import modernbert
from nlpkit.models.modernbert_decoder import Config

LORA_TARGETS = ("q_proj", "v_proj")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": task_head("ModernBertDecoderForSequenceClassification", False)
}


class Attention(modernbert.Attention):
    """Multi-head attention with three projections."""

    MATRICES = {}  # noqa: RUF012

    def make_projections(self, width: int) -> None:
        """Add the layers of queries, keys and values."""
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values, (N, C) each."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class Model(modernbert.ModernBert):
    """ModernBERT's decoder with its language-model head."""

    make_attention = Attention


_FORMAT = modernbert_format.make_format(Config, "ModernBertDecoderForCausalLM", "lm_head")
FORMAT = replace(_FORMAT, pipeline="text-generation")
