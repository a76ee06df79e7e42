"""XLM (Lample and Conneau 2019, arXiv 1901.07291) over packed sequences, in transformers' layout.

BERT's layers on the sum of token, position and language embeddings. The head of masked tokens is
the table of the input with a bias, and nothing before it. Without `langs` no language is added, as
in transformers: so it is in tasks.
N tokens of the pack, M selected rows, S sequences, C hidden_size, O outputs, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.layers.encoder import EncoderModel
from nlpkit.models.layers.head import Head, TaskHead
from nlpkit.models.layers.packs import dropout
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


LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
_SUMMARY = "sequence_summary.summary"
TASK_HEADS = {  # transformers' models with a task's layer
    "sequence_classification": TaskHead("XLMForSequenceClassification", _SUMMARY),
    "token_classification": TaskHead("XLMForTokenClassification", "classifier"),
    "question_answering": TaskHead("XLMForQuestionAnsweringSimple", "qa_outputs"),
    "multiple_choice": TaskHead(
        "XLMForMultipleChoice", "logits_proj", kind=ChoiceHead, modules={"summary": _SUMMARY}
    ),
}


class Embeddings(nn.Module):
    """The sum of word, position and language embeddings, under a norm and dropout."""

    position_embedding: Tensor
    language_embedding: nn.Parameter | None

    def __init__(self, config: Config):
        super().__init__()
        self.config, width = config, config.hidden_size
        positions = torch.empty(config.max_positions, width)
        if config.sinusoidal:
            self.register_buffer("position_embedding", positions)
        else:
            self.register_parameter("position_embedding", nn.Parameter(positions))
        languages = nn.Parameter(torch.empty(config.num_languages, width))
        self.register_parameter(
            "language_embedding", languages if config.num_languages > 1 else None
        )
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def reset_parameters(self) -> None:
        """Draw the tables from N(0, embedding_std); positions are sines where they are fixed."""
        for parameter in (self.position_embedding, self.language_embedding):
            if isinstance(parameter, nn.Parameter):
                nn.init.normal_(parameter, std=self.config.embedding_std)
        if self.config.sinusoidal:
            table = self.position_embedding
            table.copy_(_sinusoids(len(table), table.shape[1], table.device))

    def forward(self, words: Tensor, positions: Tensor, langs: Tensor | None) -> Tensor:
        """Return (N, C) from the words' embeddings (N, C); `positions`, `langs` (N,) int64."""
        x = words + F.embedding(positions, self.position_embedding)
        if langs is not None and self.language_embedding is not None:
            x = x + F.embedding(langs, self.language_embedding)
        return dropout(self.norm(x), self.config.dropout, self.training)


def _sinusoids(positions: int, width: int, device: torch.device) -> Tensor:
    """Return the position embeddings of Vaswani et al. 2017: sines and cosines in turn."""
    position = torch.arange(positions, dtype=torch.float64, device=device)
    even = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    angles = position[:, None] / 10000 ** (even / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()


class Model(EncoderModel):
    """XLM with its head of masked tokens."""

    config: Config
    embeddings: Embeddings

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, vocab_size, backend, Embeddings(config))
        self.make_output(vocab_size, config.hidden_size, tie=config.tie)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights with torch's current generator; set biases to 0."""
        super().reset_parameters()
        nn.init.normal_(self.token_embedding, std=self.config.embedding_std)
        self.embeddings.reset_parameters()

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        langs: Tensor | None = None,
        position_ids: Tensor | None = None,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        `langs` (N,) int64 are the languages of tokens, by default of none; `position_ids` are by
        default from 0 in each sequence. `cache` has keys and values of the earlier tokens, if
        attention is causal; this call adds those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = self.layout(lengths, input_ids, cache)
        return self.encode(layout, input_ids, langs, positions=position_ids, rows=rows, cache=cache)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return the hidden states (M, C): nothing stands before the table."""
        return hidden


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
