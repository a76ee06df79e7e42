"""Stays at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlpkit.config import FrozenConfig

if TYPE_CHECKING:
    from nlpkit.train.schedule import ResolvedTraining


class Config(FrozenConfig):
    """No settings beside those of `train`."""


def factor(step: float, config: Config, settings: ResolvedTraining) -> float:
    """Return 1."""
    return 1.0
