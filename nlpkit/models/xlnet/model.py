"""XLNet (Yang et al. 2019, arXiv:1906.08237) over packed sequences, in transformers' layout.

Two streams share all weights. The content stream is an encoder with relative positions, in which a
token sees those that are not after it in the order. The query stream predicts tokens: it begins
with one vector for all of them, knows their positions, and sees the content of the tokens before
them in the order (sec. 2.3). It is computed for the predicted tokens only (sec. 2.3, partial
prediction). In generation a token asks for the next one, whose query sees what the token sees; as
its own content never changes, a cache keeps it.

N tokens of the pack, M of them predicted, C hidden_size, H heads, D width of a head.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.kind import ParamSpec
from nlpkit.contracts.request import Layout
from nlpkit.models.layers import encoder
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.output_head import OutputHead
from nlpkit.models.layers.packs import Dropout
from nlpkit.models.xlnet import Config, names
from nlpkit.models.xlnet.keys import Keys

# Queries, keys and values are no linear layers in transformers, so peft has no adapters for them.
LORA_TARGETS = ("up", "down")
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS
_NEXT = "next_"  # begins the names of fields of the token that a token asks for


class Layer(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x)), for both streams."""

    MATRICES = {"query": 1, "key": 1, "value": 1, "project": 1}  # noqa: RUF012

    def __init__(self, config: Config):
        super().__init__()
        width, heads = config.hidden_size, config.num_heads
        self.drop = Dropout(config.dropout)
        self.activation = encoder.ACTIVATIONS[config.hidden_act]
        # (C, H, D), as in transformers.
        shape = (width, heads, width // heads)
        self.query = nn.Parameter(torch.empty(shape))
        self.key = nn.Parameter(torch.empty(shape))
        self.value = nn.Parameter(torch.empty(shape))
        self.project = nn.Parameter(torch.empty(shape))
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, attend: attention.Attend) -> Tensor:
        """Return the states of a stream (N, C) after this layer; `k` and `v` are (K, H, D)."""
        seen = attend(_multiply(x, self.query), k, v)
        projected = F.linear(seen.flatten(1), self.project.flatten(1))
        x = self.attention_norm(x + self.drop(projected))
        inner = self.drop(self.activation(self.up(x)))
        return self.output_norm(x + self.drop(self.down(inner)))

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (N, H, D) of states (N, C)."""
        return _multiply(x, self.key), _multiply(x, self.value)


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Return (N, H, D): states (N, C) by a weight (C, H, D)."""
    return (x @ weight.flatten(1)).unflatten(1, weight.shape[1:])


class Model(OutputHead):
    """XLNet with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.make_output(vocab_size, width, tie=True)
        self.query_start = nn.Parameter(torch.empty(1, 1, width))  # w of the paper, sec. 2.3
        self.order = [Layer(config) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(self.order)
        self.attention_tensors = AttentionTensors(
            config.kinds, config.num_layers, config.num_heads, width // config.num_heads
        )
        self.drop = Dropout(config.dropout)
        encoder.initialize(self.named_parameters(), config.init_std)
        for parameter in self.attention_tensors.parameters():
            parameter.data *= config.init_std / ParamSpec.std  # of the kind

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor,
        rank: Tensor | None = None,
        cache: Cache | None = None,
        **fields: Tensor,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        Args:
            token_type_ids: (N,) int64: which text of its sequence a token is in.
            rank: (N,) int64: 0 for tokens that all others see; from 1 on the place of a predicted
                token, whose state is of the query stream, in the order. None: all see one another.
            fields: (N,) int64 each. `position`: in its sequence; default: from 0. `part_start`:
                where the part of its sequence begins that a token is in. Parts see only themselves
                and, without gradient, the `memory` tokens before them. `next_position`: of the
                token of its text that a token asks for, or -1. The state of one that asks, and no
                other, is that of a query there. `next_part_start`: `part_start` of that token.

        Raises:
            ValueError: no token of a sequence is predicted, or none asks.
        """
        layout = attention.layout_of(lengths, input_ids.device, cache)
        given = {"position": layout.positions, "segment": token_type_ids, **fields}
        if rank is not None:
            given["rank"] = rank
        own = {name: field for name, field in given.items() if not name.startswith(_NEXT)}
        keys = Keys(layout, own, self.config.memory > 0 and "part_start" in own, cache)
        streams = [self.drop(F.embedding(input_ids, self.token_embedding))]
        attends = [self._prepare(layout, own, keys)]
        predicted, of_queries = _queries(given)
        if predicted is not None:
            sizes = layout.document_ids[predicted].bincount(minlength=len(layout.lengths))
            queries = Layout(sizes.tolist(), layout.device)
            streams.insert(0, self.drop(self.query_start[0].expand(len(predicted), -1)))
            attends.insert(0, self._prepare(queries, of_queries, keys))
        for depth, layer in enumerate(self.order):
            k, v = keys.of(layer.keys_and_values, depth, streams[-1])
            streams = [layer(x, k, v, of[depth]) for x, of in zip(streams, attends, strict=True)]
        hidden = streams[-1]  # of the content
        if predicted is not None:
            hidden = hidden.index_copy(0, predicted, streams[0].to(hidden.dtype))
        return self.drop(hidden)

    def _prepare(
        self, layout: Layout, fields: Mapping[str, Tensor], keys: Keys
    ) -> list[attention.Attend]:
        kinds = self.attention_tensors
        heads = kinds.heads_like(self.order[0].query, self.config.dropout, self.backend)
        of_keys = None if keys.layout is layout else keys.layout.with_fields(keys.fields)
        attends = kinds.prepare(heads, layout.with_fields(fields), keys=of_keys)
        self.attention_choice = attention.reasons(attends)
        return attends


def _queries(fields: Mapping[str, Tensor]) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the tokens whose state is of the query stream, (M,), and the fields of the queries.

    The tokens are None if no state is.
    """
    asked = {name.removeprefix(_NEXT): fields[name] for name in fields if name.startswith(_NEXT)}
    if asked:
        index = (asked["position"] >= 0).nonzero().squeeze(1)
        fields = {**fields, **asked}
    elif "rank" in fields:
        index = (fields["rank"] > 0).nonzero().squeeze(1)
        # A query sees the tokens before it in the order, and not its own.
        fields = {**fields, "rank": fields["rank"] - 1}
    else:
        return None, {}
    return index, {name: field[index] for name, field in fields.items()}
