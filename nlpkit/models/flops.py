"""The part of a model's FLOPs that depends on its kinds of attention."""

from collections.abc import Sequence
from typing import Protocol

from nlpkit.attention.contract import Choice


class _Config(Protocol):
    @property
    def kinds(self) -> tuple[Choice, ...]: ...
    @property
    def num_layers(self) -> int: ...


def visible_pairs(config: _Config, lengths: Sequence[int]) -> float:
    """Return the number of visible query-key pairs, summed over layers and sequences."""
    kinds = [config.kinds[layer % len(config.kinds)] for layer in range(config.num_layers)]
    pairs = {kind: kind.module.pairs(kind.config, lengths) for kind in set(kinds)}
    return sum(pairs[kind] for kind in kinds)


def encoder_pairs(
    encoder_layers: int, layers: int, lengths: Sequence[int], source_lengths: Sequence[int]
) -> int:
    """Return the query-key pairs of a full encoder and of cross attention, over all layers."""
    crossed = sum(n * m for n, m in zip(lengths, source_lengths, strict=True))
    return encoder_layers * sum(m * m for m in source_lengths) + layers * crossed


def step_flops(
    module: object,
    config: object,
    vocab_size: int,
    lengths: Sequence[int],
    targets: int,
    source_lengths: Sequence[int] = (),
) -> float:
    """Return the FLOPs of one training step on a pack, with those of its sources if it has any.

    `module` is the family's `model.py`.
    """
    parts = vars(module)
    total: float = parts["flops"](config, vocab_size, lengths, targets)
    if source_lengths and "source_flops" in parts:
        total += parts["source_flops"](config, lengths, source_lengths)
    return total
