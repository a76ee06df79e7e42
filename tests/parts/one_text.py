"""A row as one text, of which the end is predicted, as chats are trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nlpkit.objectives import generation
from nlpkit.objectives.generation import Config as Config


class Objective(generation.Objective):
    """`generation` whose items have one part; the label is the number of the source's tokens."""

    def item(self, row, ids):
        """Return both texts in one."""
        made = super().item(row, ids)
        return replace(made, parts=(np.concatenate(made.parts),), label=len(made.parts[0]))

    def unlearned(self, item):
        """Return that all tokens are learned."""
        return 0

    def example(self, item, rng):
        """Return inputs, and the tokens of the target as labels."""
        return super().example(replace(item, parts=self.both(item)), rng)

    def both(self, item):
        """Return source and target."""
        return tuple(np.split(item.parts[0], [item.label]))
