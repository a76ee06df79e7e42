"""What transformers calls the settings, parameters and task heads of XLM.

M states, C hidden_size, O outputs.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.layers.head import Head, TaskHead
from nlpkit.models.xlm import Config


class ChoiceHead(Head):
    """Dropout, a layer (O, C), then one (O, O): transformers' head of multiple choice."""

    def __init__(self, hidden_size: int, outputs: int, dropout: float, bias: bool = False):
        super().__init__(outputs, outputs, dropout, bias)
        self.summary = nn.Linear(hidden_size, outputs)
        nn.init.normal_(self.summary.weight, std=0.02)
        nn.init.zeros_(self.summary.bias)
        # The identity: two layers of small weights, one after the other, would learn nothing.
        self.weight.detach().zero_().fill_diagonal_(1.0)

    def forward(self, states: Tensor) -> Tensor:
        dropped = F.dropout(states, self.dropout, self.training)
        return F.linear(self.summary(dropped), self.weight, self.bias)


_SUMMARY = "sequence_summary.summary"
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("XLMForSequenceClassification", _SUMMARY),
    "token_classification": TaskHead("XLMForTokenClassification", "classifier"),
    "question_answering": TaskHead("XLMForQuestionAnsweringSimple", "qa_outputs"),
    "multiple_choice": TaskHead(
        "XLMForMultipleChoice", "logits_proj", kind=ChoiceHead, modules={"summary": _SUMMARY}
    ),
}

# What the family has one value of; a model of transformers with another one is another model.
_FIXED = {
    "causal": False,
    "asm": False,
    "is_encoder": True,
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
}


def _more_settings(config: Config) -> Values:
    own = {"gelu_activation": config.hidden_act == "gelu", "use_lang_emb": config.num_languages > 1}
    return own | _FIXED


def _read_config(settings: Settings, sizes: Values) -> Values:
    act = "gelu" if settings.get("gelu_activation", True) else "relu"
    has_languages = settings.get("use_lang_emb", True)
    languages = sizes["num_languages"] if has_languages else 1
    return sizes | {"hidden_act": act, "num_languages": languages}


_N = "{num_layers}"
_LAYER = {
    "query": "attentions.{}.q_lin",
    "key": "attentions.{}.k_lin",
    "value": "attentions.{}.v_lin",
    "project": "attentions.{}.out_lin",
    "attention_norm": "layer_norm1.{}",
    "up": "ffns.{}.lin1",
    "down": "ffns.{}.lin2",
    "output_norm": "layer_norm2.{}",
}
FORMAT = HfFormat(
    architecture="XLMWithLMHeadModel",
    pipeline="fill-mask",
    body="transformer.",
    names={
        "token_embedding": "transformer.embeddings.weight",
        "embeddings.position_embedding": "transformer.position_embeddings.weight",
        "embeddings.language_embedding": "transformer.lang_embeddings.weight",
        "embeddings.norm": "transformer.layer_norm_emb",
        "layers.attention_tensors": "attention_tensors",
        **{
            f"layers.blocks.{_N}.{ours}": f"transformer.{theirs.format(_N)}"
            for ours, theirs in _LAYER.items()
        },
        "token_bias": "pred_layer.proj.bias",
        "output_embedding": "pred_layer.proj.weight",
    },
    copies={"pred_layer.proj.weight": "token_embedding"},
    ignored=("position_ids",),
    sizes={
        "hidden_size": "emb_dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "num_languages": "n_langs",
        "max_positions": "max_position_embeddings",
        "sinusoidal": "sinusoidal_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "norm_eps": "layer_norm_eps",
        "init_std": "init_std",
        "embedding_std": "embed_init_std",
        "tie": "tie_word_embeddings",
    },
    # What transformers assumes where config.json says nothing.
    defaults={
        "n_langs": 1,
        "max_position_embeddings": 512,
        "sinusoidal_embeddings": False,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "init_std": 0.02,
        "embed_init_std": 2048**-0.5,
        "tie_word_embeddings": True,
    },
    fixed=_FIXED,
    more_settings=_more_settings,
    read_config=_read_config,
    bos_and_eos=True,
    has_padding=True,
)
