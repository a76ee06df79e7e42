"""ModernBERT's decoder (Weller et al. 2025, arXiv 2507.11412) over packs, in transformers' layout.

The layers are in `layers/modernbert.py`, which ModernBERT shares.
"""

from nlpkit.models.formats.modernbert_format import make_format, task_head
from nlpkit.models.layers.modernbert import ModernBert
from nlpkit.models.modernbert_decoder import Config

LORA_TARGETS = ("q_proj", "v_proj")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": task_head("ModernBertDecoderForSequenceClassification", False)
}


class Model(ModernBert):
    """ModernBERT's decoder with its language-model head."""

    projections = ("q_proj", "k_proj", "v_proj")


FORMAT = make_format(Config, "ModernBertDecoderForCausalLM", "lm_head")
