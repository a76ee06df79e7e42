"""Parts of the families of BERT's kind: embeddings, post-norm layers, the head of masked tokens.

A family makes its `Model` of them and adds what it has more, such as a pooler. Its parameters of
the vocabulary remain its own: `token_embedding`, `token_bias` and, if the tables are not tied,
`output_embedding`.
N tokens of the pack, M selected rows, S sequences, C hidden_size, E width of the embeddings,
V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.attention.contract import Choice, ComputedKind
from nlpkit.attention.layout import Layout
from nlpkit.models.attention_tensors import AttentionTensors
from nlpkit.models.dropout import dropout
from nlpkit.models.encoder_config import EncoderConfig
from nlpkit.models.head import picked
from nlpkit.models.vocabulary_head import TiedHead

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
}


class LayerSettings(Protocol):
    """The settings that the layers of an encoder read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def dropout(self) -> float: ...
    @property
    def attention_dropout(self) -> float: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def kinds(self) -> tuple[Choice, ...]: ...


class Layer(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x)).

    `output_dropout` is the dropout of what the feed-forward layers add; None: `config.dropout`.
    """

    def __init__(self, config: LayerSettings, output_dropout: float | None = None):
        super().__init__()
        width = config.hidden_size
        self.heads, self.dropout = config.num_heads, config.dropout
        self.output_dropout = config.dropout if output_dropout is None else output_dropout
        self.activation = ACTIVATIONS[config.hidden_act]
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        attend: attention.Attend,
        tensors: Mapping[str, Tensor],
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        own = picked(x, rows)
        q, k, v = (
            layer(states).unflatten(1, (self.heads, -1))
            for layer, states in ((self.query, own), (self.key, x), (self.value, x))
        )
        seen = self.project(attend(q, k, v, tensors).flatten(1))
        x = self.attention_norm(own + dropout(seen, self.dropout, self.training))
        added = self.down(self.activation(self.up(x)))
        return self.output_norm(x + dropout(added, self.output_dropout, self.training))


class Embeddings(nn.Module):
    """The sum of word, position and type embeddings, under a norm and dropout."""

    def __init__(self, config: EncoderConfig, width: int, positions: int):
        super().__init__()
        self.dropout = config.dropout
        self.position_embedding = nn.Parameter(torch.empty(positions, width))
        self.type_embedding = nn.Parameter(torch.empty(config.type_vocab_size, width))
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, words: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """Return (N, E) from the words' embeddings (N, E); `positions`, `types` (N,) int64."""
        x = words + F.embedding(positions, self.position_embedding)
        x = x + F.embedding(types, self.type_embedding)
        return dropout(self.norm(x), self.dropout, self.training)


class Layers(nn.Module):
    """The layers of an encoder with their attention.

    Args:
        blocks: a module that holds the layers, each of them once.
        order: the layer at each depth; where layers are shared (ALBERT), one is there repeatedly.
    """

    def __init__(self, config: LayerSettings, blocks: nn.Module, order: Sequence[Layer]):
        super().__init__()
        self.config, self.blocks, self.order = config, blocks, tuple(order)
        head_dim = config.hidden_size // config.num_heads
        self.attention_tensors = AttentionTensors(
            config.kinds, len(self.order), config.num_heads, head_dim
        )
        self.attention_choice = ""  # backends with their reasons, for the log

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        backend: str,
        fields: Mapping[str, Tensor] = MappingProxyType({}),
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) from the first (N, C); attention reads `fields`.

        With `rows` (M,), in the order of the pack, the result is the states (M, C) of these tokens:
        the last layer computes no others.
        """
        weight, dropout_rate = self.order[0].query.weight, self.config.attention_dropout
        kinds = self.attention_tensors
        attends = kinds.prepare(
            layout, weight, fields=fields, dropout=dropout_rate, backend=backend, cache=cache
        )
        self.attention_choice = attention.reasons(attends)
        tensors = kinds.of
        for depth, (layer, attend) in enumerate(zip(self.order[:-1], attends, strict=False)):
            x = layer(x, attend, tensors(depth))
        last, depth = self.order[-1], len(self.order) - 1
        if rows is None:
            return last(x, attends[-1], tensors(depth))
        queries = _queries(layout, rows)
        choice = self.config.kinds[depth % len(self.config.kinds)]
        # A backend that is named may be made for queries and keys of the same tokens.
        if queries is None or isinstance(choice.module, ComputedKind) or backend != "auto":
            return last(x, attends[-1], tensors(depth))[rows]
        own = {"position": layout.positions, "length": layout.token_lengths, **fields}
        attend = kinds.prepare_one(
            choice,
            queries,
            weight,
            fields={name: values[rows] for name, values in own.items()},
            dropout=dropout_rate,
            backend=backend,
            keys=layout,
            key_fields=fields,
        )
        return last(x, attend, tensors(depth), rows)


def _queries(layout: Layout, rows: Tensor) -> Layout | None:
    """Return the layout of the tokens `rows` (M,) alone; None if a sequence has none of them."""
    owners = layout.document_ids[rows]
    sizes = torch.bincount(owners, minlength=len(layout.lengths)).tolist()
    if 0 in sizes or bool((owners.diff() < 0).any()):
        return None
    return Layout.of(sizes, layout.device)


class TransformedHead(TiedHead):
    """BERT's head of masked tokens: a dense layer, an activation, a norm, the table and a bias."""

    output_embedding: nn.Parameter | None

    def make_head(
        self, config: EncoderConfig, vocab_size: int, width: int, activation: str
    ) -> None:
        """Add the parameters; `width` is that of the table."""
        self.transform = ACTIVATIONS[activation]
        self.output_dense = nn.Linear(config.hidden_size, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)
        self.token_bias = nn.Parameter(torch.empty(vocab_size))
        table = None if config.tie else nn.Parameter(torch.empty(vocab_size, width))
        self.register_parameter("output_embedding", table)

    def output_table(self) -> Tensor:
        """Return the table of the output, (V, E)."""
        return self.token_embedding if self.output_embedding is None else self.output_embedding

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, E), from hidden states (M, C)."""
        return self.output_norm(self.transform(self.output_dense(hidden)))

    def output_bias(self) -> Tensor:
        """Return what is added to the logits of every token, (V,)."""
        return self.token_bias


def initialize(named_parameters: Iterable[tuple[str, nn.Parameter]], std: float) -> None:
    """Draw weights from N(0, std) with torch's current generator; set biases to 0.

    Norms keep their scale of 1, tensors of attention what their kind has drawn.
    """
    for name, parameter in named_parameters:
        if "attention_tensors." in name:
            continue
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def layout_within(
    lengths: Sequence[int], max_positions: int, device: torch.device, cache: Cache | None = None
) -> Layout:
    """Return the layout of a pack; raise `ValueError` if a sequence is too long for the model."""
    layout = attention.layout_of(lengths, device, cache)
    if layout.longest > max_positions:
        raise ValueError(
            f"a sequence of {layout.longest} tokens; the model has {max_positions} positions"
        )
    return layout


def first_states(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return (S, C), the state of the first token of each sequence in a pack."""
    ends = torch.tensor(lengths, device=hidden.device).cumsum(0)
    return hidden[F.pad(ends[:-1], (1, 0))]
