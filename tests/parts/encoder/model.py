"""BERT (Devlin et al. 2018) over packed sequences, in the layout of transformers' `bert`.

Post-norm blocks, x = norm(x + sub(x)); token, position and type embeddings under a norm; GELU in
its exact form. One head predicts masked tokens, by the table of the input; another, on the pooled
first state, says whether the second text follows the first.
N tokens of the pack, S sequences, C hidden_size, H heads, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.vocabulary_head import TiedHead
from tests.parts.encoder import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer, and what they call it
    "sequence_classification": TaskHead("BertForSequenceClassification", "classifier"),
    "token_classification": TaskHead("BertForTokenClassification", "classifier"),
    "question_answering": TaskHead("BertForQuestionAnswering", "qa_outputs"),
    "multiple_choice": TaskHead("BertForMultipleChoice", "classifier"),
}


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.heads, self.dropout = config.num_heads, config.dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (N, C) from (N, C)."""
        q, k, v = (
            layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value)
        )
        seen = self.project(attend(q, k, v).flatten(1))
        x = self.attention_norm(x + F.dropout(seen, self.dropout, self.training))
        added = self.down(F.gelu(self.up(x)))
        return self.output_norm(x + F.dropout(added, self.dropout, self.training))


class Model(TiedHead):
    """BERT with its two heads."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.position_embedding = nn.Parameter(torch.empty(config.max_positions, width))
        self.type_embedding = nn.Parameter(torch.empty(config.type_vocab_size, width))
        self.embedding_norm = nn.LayerNorm(width, eps)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.pooler = nn.Linear(width, width)
        self.output_dense = nn.Linear(width, width)
        self.output_norm = nn.LayerNorm(width, eps)
        self.token_bias = nn.Parameter(torch.empty(vocab_size))
        self.next_sentence = nn.Linear(width, 2)
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, width // config.num_heads
        )
        self.attention_choice = ""  # backend and reason, for the log
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, init_std) with torch's current generator; biases are 0."""
        for name, parameter in self.named_parameters():
            if name.startswith("attention_tensors."):  # drawn as their kind says
                continue
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=self.config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, lengths: Sequence[int], input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Args:
            input_ids: (N,) int64.
            token_type_ids: (N,) int64: which text of its sequence a token is in.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        config = self.config
        layout = attention.layout_of(lengths, input_ids.device)
        if layout.longest > config.max_positions:
            raise ValueError(
                f"a sequence of {layout.longest} tokens; the model has {config.max_positions} "
                "positions"
            )
        kinds = self.attention_tensors
        heads = kinds.heads_like(self.token_embedding, config.attention_dropout, self.backend)
        attends = kinds.prepare(heads, layout)
        self.attention_choice = attention.reasons(attends)
        x = F.embedding(input_ids, self.token_embedding)
        x = x + F.embedding(layout.positions, self.position_embedding)
        x = x + F.embedding(token_type_ids, self.type_embedding)
        x = F.dropout(self.embedding_norm(x), config.dropout, self.training)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, attend)
        return x

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, C), from hidden states (M, C)."""
        return self.output_norm(F.gelu(self.output_dense(hidden)))

    def output_bias(self) -> Tensor:
        """Return what is added to the logits of every token, (V,)."""
        return self.token_bias

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), what stands for each sequence in a task: its first state, pooled."""
        ends = torch.tensor(lengths, device=hidden.device).cumsum(0)
        first = F.pad(ends[:-1], (1, 0))
        return torch.tanh(self.pooler(hidden[first]))

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2): scores that the second text follows the first, and that it does not."""
        return self.next_sentence(self.summary(hidden, lengths))


def _check_settings(settings: Settings, sizes: dict[str, Any]) -> dict[str, Any]:
    for name, value in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if settings.get(name, value) != value:
            raise ValueError(f"{name} is {settings[name]!r}; BERT has {value}")
    return sizes


_OURS, _THEIRS = "layers.{num_layers}", "bert.encoder.layer.{num_layers}"
FORMAT = HfFormat(
    architecture="BertForPreTraining",
    body="bert.",
    names={
        "token_embedding": "bert.embeddings.word_embeddings.weight",
        "position_embedding": "bert.embeddings.position_embeddings.weight",
        "type_embedding": "bert.embeddings.token_type_embeddings.weight",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "attention_tensors": "attention_tensors",
        f"{_OURS}.query": f"{_THEIRS}.attention.self.query",
        f"{_OURS}.key": f"{_THEIRS}.attention.self.key",
        f"{_OURS}.value": f"{_THEIRS}.attention.self.value",
        f"{_OURS}.project": f"{_THEIRS}.attention.output.dense",
        f"{_OURS}.attention_norm": f"{_THEIRS}.attention.output.LayerNorm",
        f"{_OURS}.up": f"{_THEIRS}.intermediate.dense",
        f"{_OURS}.down": f"{_THEIRS}.output.dense",
        f"{_OURS}.output_norm": f"{_THEIRS}.output.LayerNorm",
        "pooler": "bert.pooler.dense",
        "output_dense": "cls.predictions.transform.dense",
        "output_norm": "cls.predictions.transform.LayerNorm",
        "token_bias": "cls.predictions.bias",
        "next_sentence": "cls.seq_relationship",
    },
    copies={
        "cls.predictions.decoder.weight": "token_embedding",
        "cls.predictions.decoder.bias": "token_bias",
    },
    # BertForMaskedLM has neither.
    optional=("pooler", "next_sentence"),
    ignored=("position_ids",),
    sizes={
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
    },
    more_settings=lambda config: {"hidden_act": "gelu"},
    read_config=_check_settings,
)
