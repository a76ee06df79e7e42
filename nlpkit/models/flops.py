"""The FLOPs of a training step, from the matrices of the model and its kinds of attention.

A matrix is multiplied by the states of tokens, of tokens of sources, or of targets: the name of the
parameter says of which, by the conventions below.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import count_pairs
from nlpkit.contracts.batch import LENGTHS, Batch
from nlpkit.contracts.objective import Objective
from nlpkit.models import families
from nlpkit.models.config import ModelConfig
from nlpkit.models.layers.attention_tensors import AttentionTensors
from nlpkit.models.layers.encoder import Layers
from nlpkit.models.matrices import layer_matrices
from nlpkit.models.meta import meta_model

_OF_SOURCES = re.compile(r"encoder\.|.+\.(cross|alignment)\.(key|value)\.")
_KEYS_OF_SOURCES = re.compile(r".+\.(cross|alignment)\.key\.")  # in attention to a source
_OF_TARGETS = re.compile(r"(.+\.)?output_(dense|projection)\.")  # before the output table
# They read one state of a sequence, which does not count.
_OF_SEQUENCES = re.compile(r"(pooler|next_sentence|order_classifier|bridge)\.")


def step_flops(
    family: str,
    config: ModelConfig,
    vocab_size: int,
    lengths: Sequence[int],
    targets: int,
    source_lengths: Sequence[int] = (),
) -> float:
    """Return the multiplications and additions of one training step on a pack.

    Backward takes twice those of forward. Not counted: norms and activations, a task's head,
    adapters, the tokens that ELECTRA's generator draws. `targets` is the number of states that are
    multiplied by the output table.
    """
    model = meta_model(families.load_model(family).Model, config, vocab_size)
    # Predicted tokens go through the layers of two streams twice.
    share = 1 + targets / max(sum(lengths), 1) if config.can("two_streams") else 1
    products: float = targets * _table_size(model, families.load(family).VOCABULARY)
    passes = config.setting("passes", 1)
    products += share * passes * _attention(model, config, lengths, source_lengths)
    for name, (weight, uses) in _matrices(model, passes).items():
        if _OF_TARGETS.match(name):
            rows: float = targets
        else:
            rows = sum(source_lengths) if _OF_SOURCES.match(name) else share * sum(lengths)
        products += rows * uses * weight.numel()
        if _KEYS_OF_SOURCES.match(name):
            pairs = sum(n * m for n, m in zip(lengths, source_lengths, strict=True))
            products += 2 * len(weight) * pairs
    return 3 * 2 * products


def _table_size(model: nn.Module, vocabulary: Sequence[str]) -> int:
    """Return the numbers of the output table, the last of the tables; 0 without a vocabulary."""
    parameters = dict(model.named_parameters())
    tables = [parameters[name] for name in vocabulary if name in parameters]
    return next((table.numel() for table in reversed(tables) if table.ndim == 2), 0)


def _matrices(model: nn.Module, passes: int) -> dict[str, tuple[nn.Parameter, int]]:
    """Return the matrices that multiply states of tokens, each with how often it does so.

    All matrices of `layers` do so in each of the passes.
    """
    found: set[Tensor] = {*layer_matrices(model)}
    found |= {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    repeated = Counter(
        parameter
        for module in model.modules()
        if isinstance(module, Layers)
        for layer in module.order
        for parameter in layer.parameters()
    )
    return {
        name: (parameter, repeated.get(parameter, passes if name.startswith("layers.") else 1))
        for name, parameter in model.named_parameters()
        if parameter in found and not _OF_SEQUENCES.match(name)
    }


def _attention(
    model: nn.Module, config: ModelConfig, lengths: Sequence[int], source_lengths: Sequence[int]
) -> float:
    """Return the products of queries, keys and values within sequences."""
    total, found = 0.0, [m for m in model.named_modules() if isinstance(m[1], AttentionTensors)]
    for name, module in found:
        seen = source_lengths if name.startswith("encoder") else lengths
        total += module.heads * module.head_dim * _pairs(module.of_layers, seen)
    if config.kinds and not found:  # a family with a table of its own
        kinds = [config.kinds[n % len(config.kinds)] for n in range(config.num_layers)]
        total = config.num_heads * config.width_per_head * _pairs(kinds, lengths)
    return 2 * total


def _pairs(kinds: Sequence[AttentionChoice], lengths: Sequence[int]) -> float:
    """Return the query-key pairs that layers of these kinds see, over all sequences."""
    return sum(count_pairs(kind, lengths) for kind in kinds)


def count_projections(objective: Objective, batch: Batch) -> int:
    """Return how many states of a batch are multiplied with the output table."""
    if not objective.predicts_text:
        # The targets of a task are rows; its auxiliary loss predicts their tokens.
        return batch.tokens if objective.lm_weight else 0
    arrays = {**batch.fields, LENGTHS: np.array(batch.lengths)}
    of_text = [each for each in objective.objectives or (objective,) if each.predicts_text]
    return sum(next(iter(each.num_targets(arrays).values())) for each in of_text)
