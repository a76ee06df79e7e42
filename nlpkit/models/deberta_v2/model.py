"""DeBERTa-v2 and v3 over packed sequences, in transformers' layout.

He et al. 2020, arXiv 2006.03654; He et al. 2021, arXiv 2111.09543. BERT's post-norm layers with the
attention kind `disentangled`: the keys and queries of distances are a table of the whole encoder,
under a norm, through the projections of each layer. As in transformers there is no enhanced mask
decoder.

With a generator (v3) the model tells replaced tokens. Its table of words is then the generator's,
without gradient, plus a table of its own that begins at 0: gradient-disentangled embedding sharing
(He et al. 2021, sec. 3.3).
N tokens of the pack, M selected rows, S sequences, H heads, D width of a head, C hidden_size,
R rows of distances, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.request import Heads, Layout
from nlpkit.models.deberta_v2 import Config, names
from nlpkit.models.layers import encoder
from nlpkit.models.layers.encoder import ACTIVATIONS, TransformedHead, initialize
from nlpkit.models.layers.packs import dropout, first_states, layout_within
from nlpkit.models.layers.sampling import sample

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS


class Embeddings(nn.Module):
    """The embeddings of words, with those of positions and types if there are any."""

    def __init__(self, config: Config):
        super().__init__()
        self.dropout, width = config.dropout, config.hidden_size
        rows = config.max_positions if config.absolute_positions else 0
        self.position_embedding = _make_table(rows, width)
        self.type_embedding = _make_table(config.type_vocab_size, width)
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def forward(self, words: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """Return (N, C) from the words' embeddings (N, C); `positions`, `types` (N,) int64."""
        x = words
        if self.position_embedding is not None:
            x = x + F.embedding(positions, self.position_embedding)
        if self.type_embedding is not None:
            types = torch.zeros_like(positions) if types is None else types
            x = x + F.embedding(types, self.type_embedding)
        return dropout(self.norm(x), self.dropout, self.training)


def _make_table(rows: int, width: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(rows, width)) if rows else None


@dataclass(frozen=True)
class DistanceAttend(attention.Attend):
    """Attention with the embeddings of distances."""

    distances: Tensor  # (R, C)


class Layer(encoder.Layer):
    """A layer that projects the embeddings of distances, too."""

    def __init__(self, config: Config):
        super().__init__(config)
        width, own = config.hidden_size, not config.shared_projections
        self.terms = config.terms
        self.position_key = nn.Linear(width, width) if own and self.terms != "p2c" else None
        self.position_query = nn.Linear(width, width) if own and self.terms != "c2p" else None

    def attend(self, own: Tensor, x: Tensor, attend: attention.Attend) -> Tensor:
        """Return (M, H, D), what the tokens `own` (M, C) see of all tokens (N, C)."""
        assert isinstance(attend, DistanceAttend)
        distances = dropout(attend.distances, self.dropout, self.training)
        tensors = {}
        if self.terms != "p2c":
            tensors["position_keys"] = self._split((self.position_key or self.key)(distances))
        if self.terms != "c2p":
            table = (self.position_query or self.query)(distances)
            tensors["position_queries"] = self._split(table)
        q, k, v = (self._split(x) for x in (self.query(own), self.key(x), self.value(x)))
        return attend(q, k, v, tensors)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self.heads, -1))


class Layers(encoder.Layers):
    """The layers with their table of distances."""

    def __init__(self, config: Config):
        layers = [Layer(config) for _ in range(config.num_layers)]
        super().__init__(config, (nn.ModuleList(layers), layers))
        # What the kind would learn in each layer is made of this table.
        for name, _ in [*self.attention_tensors.named_parameters()]:
            delattr(self.attention_tensors, name)
        (choice,) = config.default_attention
        width = config.hidden_size
        self.distance_embedding = nn.Parameter(torch.empty(choice.config.rows, width))
        self.distance_norm = (
            nn.LayerNorm(width, config.norm_eps) if config.distance_norm else nn.Identity()
        )

    def prepare(
        self, heads: Heads, layout: Layout, cache: Cache | None = None
    ) -> list[attention.Attend]:
        """Return the attention of each layer."""
        distances = self.distance_norm(self.distance_embedding)
        return [
            DistanceAttend(attend.backend, attend.reason, attend.run, distances)
            for attend in super().prepare(heads, layout, cache)
        ]


class Encoder(nn.Module):
    """Embeddings and layers of one of the two models."""

    def __init__(self, config: Config):
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = Layers(config)

    def encode(
        self,
        words: Tensor,
        layout: Layout,
        types: Tensor | None,
        backend: str,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) from the words' embeddings, or those of `rows`."""
        x = self.embeddings(words, layout.positions, types)
        return self.layers(x, layout, backend, rows=rows)


class Masked(Encoder, TransformedHead):
    """An encoder with its table of words and its head of masked tokens."""

    def make_tables(self, config: Config, vocab_size: int) -> None:
        """Add the parameters, without initial values."""
        width = config.hidden_size
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.make_head(config, vocab_size, width, config.hidden_act)


class Model(Masked):
    """DeBERTa with its head of masked tokens, or the discriminator with its generator."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config)
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.generator: Masked | None = None
        self.embedding_delta: nn.Parameter | None = None
        if config.has_generator:
            inner = config.generator_config()
            self.generator = Masked(inner)
            self.generator.make_tables(inner, vocab_size)
            self.replaced_norm = nn.LayerNorm(width, config.norm_eps)
            self.replaced_dense = nn.Linear(width, width)
            self.replaced_score = nn.Linear(width, 1)
        else:
            self.make_tables(config, vocab_size)
        initialize(self.named_parameters(), config.init_std)
        if config.has_delta:
            self.embedding_delta = nn.Parameter(torch.zeros(vocab_size, width))

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        is_target: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack, or those of its `rows` (M, C).

        All inputs are (N,). With `is_target`, the tokens that the generator is to predict, the
        states are the generator's, of a text with masked tokens; the discriminator's without.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        layout = layout_within(lengths, self.config.max_positions, input_ids.device)
        half = self if is_target is None else self._masked
        table = self._masked.token_embedding
        if half is self and self.embedding_delta is not None:
            words = F.embedding(input_ids, table.detach())
            words = words + F.embedding(input_ids, self.embedding_delta)
        else:
            words = F.embedding(input_ids, table)
        states = half.encode(words, layout, token_type_ids, self.backend, rows)
        self.attention_choice = half.layers.attention_choice
        return states

    @property
    def _masked(self) -> Masked:
        """The model that predicts masked tokens."""
        return self if self.generator is None else self.generator

    def output_states(self, hidden: Tensor) -> Tensor:
        """Return what the table is multiplied by, (M, C), from the states (M, C)."""
        if self.generator is not None:
            return self.generator.output_states(hidden)
        return super().output_states(hidden)

    def output_table(self) -> Tensor:
        """Return the table of the output, (V, C)."""
        if self.generator is not None:
            return self.generator.output_table()
        return super().output_table()

    def output_bias(self) -> Tensor | None:
        """Return what is added to the logits of every token, (V,)."""
        return self._masked.token_bias

    def sample_tokens(
        self, hidden: Tensor, index: Tensor, uniform: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Return tokens (M,) that the generator draws at rows `index` (M,); no gradient.

        Args:
            hidden: the generator's states (N, C).
            uniform: (M,), a number from 0 to 1 for each draw.
        """
        with torch.no_grad():
            states = self.output_states(hidden[index])
        return sample(
            states, self.output_table(), uniform, bias=self.output_bias(), temperature=temperature
        )

    def replaced_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (N,) scores that a token is replaced, from the discriminator's states (N, C).

        As in the authors' code, a token's state is that of the first token added to its own.
        """
        sizes = torch.tensor(lengths, device=hidden.device)
        first = first_states(hidden, lengths).repeat_interleave(
            sizes, dim=0, output_size=len(hidden)
        )
        x = self.replaced_dense(self.replaced_norm(first + hidden))
        return self.replaced_score(ACTIVATIONS[self.config.hidden_act](x)).squeeze(1)

    def summary(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, C), the representation of each sequence in a task: its first state."""
        return first_states(hidden, lengths)
