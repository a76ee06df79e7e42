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
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.attention.cache import Cache
from nlpkit.contracts.request import Heads, Layout
from nlpkit.models.deberta_v2 import Config, names
from nlpkit.models.layers import encoder
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import ACTIVATIONS, TransformedHead, initialize
from nlpkit.models.layers.generator import Detector
from nlpkit.models.layers.packs import dropout, first_states

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS


class Layer(encoder.Layer):
    """A layer that projects the embeddings of distances, too."""

    def __init__(self, config: Config):
        super().__init__(config)
        width, own = config.hidden_size, not config.shared_projections
        self.terms = config.terms
        self.position_key = nn.Linear(width, width) if own and self.terms != "p2c" else None
        self.position_query = nn.Linear(width, width) if own and self.terms != "c2p" else None

    def project_distances(self, distances: Tensor) -> dict[str, Tensor]:
        """Return the position's keys and queries (R, H, D) of the distances (R, C)."""
        x, tables = dropout(distances, self.dropout, self.training), {}
        if self.terms != "p2c":
            tables["position_keys"] = (self.position_key or self.key)(x)
        if self.terms != "c2p":
            tables["position_queries"] = (self.position_query or self.query)(x)
        return {name: table.unflatten(1, (self.heads, -1)) for name, table in tables.items()}


class Layers(encoder.Layers):
    """The layers with their table of distances."""

    make_layer = Layer
    order: tuple[Layer, ...]

    def __init__(self, config: Config):
        super().__init__(config)
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
        distances = self.distance_norm(self.distance_embedding)

        def bind(attend: attention.Attend, layer: Layer) -> attention.Attend:
            def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return attend.run(q, k, v, layer.project_distances(distances))

            return replace(attend, run=run)

        return [*map(bind, super().prepare(heads, layout, cache), self.order)]


class Masked(TransformedHead):
    """One of the two models; with a vocabulary, it has a table of words and predicts tokens."""

    def __init__(self, config: Config, vocab_size: int | None):
        super().__init__()
        width, rows = config.hidden_size, config.max_positions * config.absolute_positions
        self.embeddings = Embeddings(config, width, rows, config.type_vocab_size)
        self.layers = Layers(config)
        if vocab_size is not None:
            self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
            self.make_head(config, vocab_size, width, config.hidden_act)


class Model(Detector, Masked):
    """DeBERTa with its head of masked tokens, or the discriminator with its generator."""

    generator: Masked | None
    embedding_delta: nn.Parameter | None

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__(config, None if config.has_generator else vocab_size)
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.generator, self.embedding_delta = None, None
        if config.has_generator:
            self.generator = Masked(config.generator_config(), vocab_size)
            self.replaced_norm = nn.LayerNorm(width, config.norm_eps)
            self.replaced_dense = nn.Linear(width, width)
            self.replaced_score = nn.Linear(width, 1)
        initialize(self.named_parameters(), config.init_std)
        if config.has_delta:
            self.embedding_delta = nn.Parameter(torch.zeros(vocab_size, width))

    def embed(
        self, input_ids: Tensor, positions: Tensor, types: Tensor | None, generates: bool
    ) -> Tensor:
        table = (self.generator or self).token_embedding
        if generates or self.embedding_delta is None:
            words = F.embedding(input_ids, table)
        else:
            words = F.embedding(input_ids, table.detach())
            words = words + F.embedding(input_ids, self.embedding_delta)
        return self.choose_half(generates).embeddings(words, positions, types)

    def choose_half(self, generates: bool) -> "Masked":
        return self.generator if generates and self.generator is not None else self

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
