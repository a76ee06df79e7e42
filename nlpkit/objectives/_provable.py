"""Optional methods of an objective that allow `nlpkit selftest` to check its examples."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Provable(Protocol):
    """All members are optional. In a list each objective describes only itself."""

    # The share of the targets of which `shown` is True.
    shown_rate: float
    # Whether a head classifies each token as replaced (label 1) or original (label 0).
    detects: bool

    def shown(self, example: dict[str, np.ndarray]) -> np.ndarray:
        """Return (T,) bool: positions whose target is visible or replaced by a random word.

        The prediction there may depend on the token. By default no target is visible, so an
        objective with 80/10/10 masking needs this method.
        """

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the example with the source's tokens back in `input_ids`.

        By default each label is put back at its own position or at the next one.
        """

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the ids of the texts of an unmasked example, in the order of the source.

        Without mates their concatenation is the piece. With mates each text is a contiguous part
        of the piece or of a mate. By default texts are the tokens between special tokens.
        """
