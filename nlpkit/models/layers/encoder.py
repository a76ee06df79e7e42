"""What the families of BERT's kind share: post-norm layers, heads, the way of a pack.

A family derives its `Model` from `EncoderModel` and adds what it has more.
N tokens of the pack, M selected rows, S sequences, H heads, D width of a head, C hidden_size,
E width of the embeddings, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.request import Heads, Layout
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.embeddings import count_positions, number_texts
from nlpkit.models.layers.encoder_config import PostNormConfig
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.layers.packs import dropout, first_states, layout_within, select_rows

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class Layer(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x)).

    `output_dropout` is the dropout of what the feed-forward layers add; None: `config.dropout`.
    """

    def __init__(self, config: PostNormConfig, output_dropout: float | None = None):
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

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        own = select_rows(x, rows)
        seen = self.project(self.attend(own, x, attend).flatten(1))
        x = self.attention_norm(own + dropout(seen, self.dropout, self.training))
        added = self.down(self.activation(self.up(x)))
        return self.output_norm(x + dropout(added, self.output_dropout, self.training))

    def attend(self, own: Tensor, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (M, H, D), what the tokens `own` (M, C) see of all tokens (N, C)."""
        projected = self.query(own), self.key(x), self.value(x)
        return attend(*(states.unflatten(1, (self.heads, -1)) for states in projected))


class Layers(nn.Module):
    """The layers of an encoder with their attention.

    Where layers share weights (ALBERT), `shared` is a module that holds each of them once, and the
    layer at each depth.
    """

    make_layer: Callable[..., Layer] = Layer
    takes_rows = True  # whether the last layer may compute some tokens alone

    def __init__(
        self, config: PostNormConfig, shared: tuple[nn.Module, Sequence[Layer]] | None = None
    ):
        super().__init__()
        if shared is None:
            layers = [self.make_layer(config) for _ in range(config.num_layers)]
            shared = nn.ModuleList(layers), layers
        self.config, self.blocks, self.order = config, shared[0], tuple(shared[1])
        self.attention_tensors = AttentionTensors(
            config.kinds, len(self.order), config.num_heads, config.width_per_head
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
        heads = kinds.heads_like(weight, dropout_rate, backend)
        layout = layout.with_fields(fields)
        attends = self.prepare(heads, layout, cache)
        self.attention_choice = attention.reasons(attends)
        *before, last = zip(self.order, attends, strict=True)
        for layer, attend in before:
            x = layer(x, attend)
        layer, attend = last
        if rows is None:
            return layer(x, attend)
        queries, choice = _queries(layout, rows), kinds.of_layers[-1]
        # A backend that is named may be made for queries and keys of the same tokens.
        if queries is None or choice.is_custom or backend != "auto" or not self.takes_rows:
            return layer(x, attend)[rows]
        own = {"position": layout.positions, "length": layout.token_lengths, **fields}
        queries = queries.with_fields({name: values[rows] for name, values in own.items()})
        attend = attention.prepare(choice, heads, queries, tensors=kinds.of(choice), keys=layout)
        return layer(x, kinds.bind(attend, len(self.order) - 1), rows)

    def prepare(
        self, heads: Heads, layout: Layout, cache: Cache | None = None
    ) -> list[attention.Attend]:
        """Return the attention of each layer."""
        return self.attention_tensors.prepare(heads, layout, cache=cache)


def _queries(layout: Layout, rows: Tensor) -> Layout | None:
    """Return the layout of the tokens `rows` (M,) alone; None if a sequence has none of them."""
    owners = layout.document_ids[rows]
    sizes = torch.bincount(owners, minlength=len(layout.lengths)).tolist()
    if 0 in sizes or bool((owners.diff() < 0).any()):
        return None
    return Layout(sizes, layout.device)


class TransformedHead(OutputHead):
    """BERT's head of masked tokens: a dense layer, an activation, a norm, the table and a bias."""

    def make_head(
        self, config: PostNormConfig, vocab_size: int, width: int, activation: str
    ) -> None:
        """Add the parameters; `width` is that of the table."""
        self.transform = ACTIVATIONS[activation]
        self.output_dense = nn.Linear(config.hidden_size, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)
        self.make_output(vocab_size, width, tie=config.tie)

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, E), from hidden states (M, C)."""
        return self.output_norm(self.transform(self.output_dense(hidden)))


class EncoderModel(TransformedHead):
    """Tables, layers and initial values of a family of BERT's kind, which adds its heads.

    Args:
        embeddings: makes the first states of words (N, E), positions (N,) and types (N,).
        width: E, if a linear layer makes the embeddings C wide; else they are.
        pooler: whether the summary of a sequence goes through a layer with tanh.
    """

    make_layers: Callable[..., Layers] = Layers

    def __init__(
        self,
        config: PostNormConfig,
        vocab_size: int,
        backend: str,
        embeddings: nn.Module,
        *,
        width: int | None = None,
        pooler: bool = False,
    ):
        super().__init__()
        size = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width or size))
        self.embeddings = embeddings
        self.widen = nn.Linear(width, size) if width else None
        self.layers = self.make_layers(config)
        self.pooler = nn.Linear(size, size) if pooler else None

    def reset_parameters(self) -> None:
        """Draw weights from N(0, init_std) with torch's current generator; set biases to 0."""
        initialize(self.named_parameters(), self.config.init_std)

    def layout(
        self, lengths: Sequence[int], input_ids: Tensor, cache: Cache | None = None
    ) -> Layout:
        """Return the layout of a pack; raise `ValueError` if a sequence is too long."""
        return layout_within(lengths, self.config.max_positions, input_ids.device, cache)

    def encode(
        self,
        layout: Layout,
        input_ids: Tensor,
        types: Tensor | None,
        *,
        positions: Tensor | None = None,
        fields: Mapping[str, Tensor] = MappingProxyType({}),
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or (M, C), those of the `rows` alone."""
        words = F.embedding(input_ids, self.token_embedding)
        if positions is None:
            positions = self.count_positions(input_ids, layout)
        x = self.embeddings(words, positions, types)
        x = x if self.widen is None else self.widen(x).to(x.dtype)  # norms on CPUs keep the type
        fields = {**fields, **self._text_fields(layout, types, input_ids)}
        states = self.layers(x, layout, self.backend, fields, rows, cache)
        self.attention_choice = self.layers.attention_choice
        return states

    def count_positions(self, input_ids: Tensor, layout: Layout) -> Tensor:
        """Return the position of each token, (N,), from 0 in each sequence or by RoBERTa's rule."""
        padding = self.config.setting("padding_idx")
        return layout.positions if padding is None else count_positions(input_ids, layout, padding)

    def _text_fields(self, layout: Layout, types: Tensor | None, ids: Tensor) -> dict[str, Tensor]:
        """Return the token types and the numbers of texts, if a kind of attention reads them."""
        if not any("text" in choice.module.FIELDS for choice in self.config.attention):
            return {}
        if types is None:  # single texts
            return dict.fromkeys(("token_type_ids", "text"), torch.zeros_like(layout.positions))
        return {"token_type_ids": types, "text": number_texts(layout, types, ids)}

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its first state."""
        first = first_states(hidden, lengths)
        return first if self.pooler is None else torch.tanh(self.pooler(first))


class TypedEncoder(EncoderModel):
    """An encoder that reads tokens and their types."""

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        `token_type_ids` (N,) int64 say which text of its sequence a token is in; None: all are 0.
        `cache` has keys and values of the earlier tokens, if attention is causal; this call adds
        those of its tokens.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = self.layout(lengths, input_ids, cache)
        return self.encode(layout, input_ids, token_type_ids, rows=rows, cache=cache)


class UntypedEncoder(EncoderModel):
    """An encoder whose tokens have no types, or all the same."""

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        rows: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """See `TypedEncoder`."""
        layout = self.layout(lengths, input_ids, cache)
        return self.encode(layout, input_ids, None, rows=rows, cache=cache)


def initialize(
    named_parameters: Iterable[tuple[str, nn.Parameter]], std: float | Callable[[str], float]
) -> None:
    """Draw weights from N(0, std) with torch's current generator; set biases to 0.

    `std` may depend on the name. Norms keep their scale of 1, tensors of attention what their kind
    has drawn.
    """
    for name, parameter in named_parameters:
        if "attention_tensors." in name:
            continue
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=std(name) if callable(std) else std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
