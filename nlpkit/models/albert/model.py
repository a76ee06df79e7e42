"""ALBERT (Lan et al. 2019, arXiv 1909.11942) over packed sequences, in transformers' layout.

BERT with embeddings of width E, which a linear layer makes C wide, and with layers that share their
weights. One head predicts masked tokens; another, on the pooled first state, says whether two texts
are in their order.
N tokens of the pack, M selected rows, S sequences, C hidden_size, E embedding_size, V vocabulary.

As in transformers, what the feed-forward layers add has no dropout.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.models.albert import Config, names
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import Layer, Layers, TypedEncoder

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
FORMAT, TASK_HEADS = names.FORMAT, names.TASK_HEADS


class Model(TypedEncoder):
    """ALBERT with its two heads."""

    config: Config

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        narrow = config.embedding_size
        embeddings = Embeddings(config, narrow, config.max_positions, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings, width=narrow, pooler=True)
        self.make_head(config, vocab_size, narrow, config.hidden_act)
        self.order_classifier = nn.Linear(config.hidden_size, 2)
        self.reset_parameters()

    def make_layers(self, config: Config) -> Layers:
        """Return the layers; those of a group share their weights."""
        groups = [
            [Layer(config, output_dropout=0.0) for _ in range(config.inner_layers)]
            for _ in range(config.num_groups)
        ]
        # The group of each layer as transformers computes it.
        per_group = config.num_layers / config.num_groups
        order = [each for n in range(config.num_layers) for each in groups[int(n / per_group)]]
        return Layers(config, (nn.ModuleList(map(nn.ModuleList, groups)), order))

    def pair_logits(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return (S, 2): scores that the two texts are in their order, and that they are not."""
        pooled = self.summary(hidden, lengths)
        dropped = F.dropout(pooled, self.config.pair_dropout, self.training)
        return self.order_classifier(dropped)
