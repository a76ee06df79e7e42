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
