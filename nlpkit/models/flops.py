"""What of a model's work its kinds of attention decide."""

from collections.abc import Sequence
from typing import Protocol

from nlpkit.attention.contract import Choice


class _Config(Protocol):
    @property
    def kinds(self) -> tuple[Choice, ...]: ...
    @property
    def num_layers(self) -> int: ...


def visible_pairs(config: _Config, lengths: Sequence[int]) -> float:
    """Return the pairs of query and key that all layers compute in sequences of these lengths."""
    kinds = [config.kinds[layer % len(config.kinds)] for layer in range(config.num_layers)]
    each = {kind: kind.module.pairs(kind.config, lengths) for kind in set(kinds)}
    return sum(each[kind] for kind in kinds)
