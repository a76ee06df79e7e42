"""What an objective may say about its examples so that `nlpkit selftest` can prove them."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Provable(Protocol):
    """Every part is optional. In a list each objective says what it itself does."""

    # The share of the targets of which `shown` is True.
    shown_rate: float
    # Whether a head tells for each token whether it was replaced (label 1) or not (label 0).
    detects: bool

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: rows whose target shows a word by design, its own or a random one.

        They may depend on their own token. By default no target shows one, so an objective that
        masks 80/10/10 must have this method.
        """

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the example with the source's tokens in `input_ids`, each where it belongs.

        By default `labels` are put back, at their own place or at the next one.
        """

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the ids of the texts of an unmasked example, in the order of the source.

        Without mates they are, joined, the piece; with mates each is a run of the piece or of a
        mate. By default what stands between special tokens.
        """
