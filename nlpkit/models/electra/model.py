"""ELECTRA (Clark et al. 2020, arXiv 2003.10555) over packed sequences, in transformers' layout.

Two encoders with BERT's layers. The generator predicts masked tokens; the discriminator says of
each token whether it is the generator's. They share the embeddings of tokens, positions and types
with their norm, as in google-research/electra; each has a linear layer that makes the embeddings as
wide as itself. A task tunes the discriminator alone.
N tokens of the pack, M selected rows, S sequences, C hidden_size, G width of the generator,
E width of the embeddings, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.models.electra import Config, names
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import ACTIVATIONS, Layers, TransformedHead, initialize
from nlpkit.models.layers.generator import Detector

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS


class Encoder(nn.Module):
    """The layers of one of the two models, after a linear layer if the embeddings need it."""

    def __init__(self, config: Config):
        super().__init__()
        embedded, width = config.embedding_width, config.hidden_size
        self.widen = nn.Linear(embedded, width) if embedded != width else None
        self.layers = Layers(config)


class Generator(Encoder, TransformedHead):
    """The generator with its head; the table of the input is the model's."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__(config)
        self.make_head(config, vocab_size, config.embedding_width, "gelu")


class Model(Detector):
    """Generator and discriminator; without a generator, the discriminator alone."""

    generator: Generator | None

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, config.embedding_width))
        self.embeddings = Embeddings(
            config, config.embedding_width, config.max_positions, config.type_vocab_size
        )
        self.discriminator = Encoder(config)
        self.replaced_dense = nn.Linear(width, width)
        self.replaced_score = nn.Linear(width, 1)
        self.generator = (
            Generator(config.generator_config(), vocab_size) if config.has_generator else None
        )
        initialize(self.named_parameters(), config.init_std)

    def embed(
        self, input_ids: Tensor, positions: Tensor, types: Tensor | None, generates: bool
    ) -> Tensor:
        """Return the first states (N, C) of one of the two models, which share the embeddings."""
        x = self.embeddings(F.embedding(input_ids, self.token_embedding), positions, types)
        widen = self.choose_half(generates).widen
        return x if widen is None else widen(x).to(x.dtype)  # see `EncoderModel.encode`

    def choose_half(self, generates: bool) -> Encoder:
        half = self.generator if generates else self.discriminator
        assert half is not None  # objectives need the capability
        return half

    def output_table(self) -> Tensor:
        """Return the table of the output, (V, E): that of the input, which both models share."""
        own = None if self.generator is None else self.generator.output_embedding
        return self.token_embedding if own is None else own

    def replaced_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (N,) scores that a token is replaced, from the discriminator's states (N, C)."""
        activation = ACTIVATIONS[self.config.hidden_act]
        return self.replaced_score(activation(self.replaced_dense(hidden))).squeeze(1)
