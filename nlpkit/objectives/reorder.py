"""Shuffled tokens, whose places in the text are predicted: the documents' variant of XLNet's task.

A share of the tokens of a piece change places among themselves; for each of them a linear layer
predicts its place in the text. The layer is the objective's own, so every bidirectional family can
learn it.

T tokens of an example, M moved tokens, C state_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Term
from nlpkit.contracts.objective import TrainedModel
from nlpkit.objectives.examples.frame import FramedText

if TYPE_CHECKING:
    import torch
    from torch import nn


HEAD = "places"


class Config(FrozenConfig):
    """How text is cut, and how many tokens are moved."""

    max_length: int = Setting(64, ge=4, description="longest example, in tokens")
    rate: float = Setting(
        1.0,
        gt=0,
        le=1,
        description="share of the tokens that are shuffled; their places are predicted",
    )


class Objective(FramedText):
    """Examples and loss of the prediction of places."""

    parts = ("reorder",)
    fields: Mapping[str, Field] = {
        **FramedText.fields,
        "place": Field(np.int64),  # the place in the text of a moved token, else IGNORE
    }
    needs = ("bidirectional", "has_vocabulary", "hidden_size")
    min_piece = 2  # tokens that can change places

    def heads(self) -> dict[str, nn.Module]:
        from torch import nn

        places = self.config.max_length - self.extra
        layer = nn.Linear(self.model_config.state_size, places)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        return {HEAD: layer}

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the piece with shuffled tokens, and the place of each of these in the text."""
        size = len(ids)
        moved = np.sort(rng.permutation(size)[: max(2, round(self.config.rate * size))])
        order = np.arange(size)
        order[moved] = moved[self.order(len(moved), rng)]
        example = self.enclose(ids[order])
        example["place"] = np.full(size + self.extra, IGNORE)
        example["place"][len(self.frame.start) + moved] = order[moved]
        return example

    def order(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random order of `size` tokens."""
        return rng.permutation(size)

    def unmask(self, example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ids, place = example["input_ids"].copy(), example["place"]
        moved = place != IGNORE
        ids[len(self.frame.start) + place[moved]] = example["input_ids"][moved]
        return example | {"input_ids": ids}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"reorder": int((batch["place"] != IGNORE).sum())}

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy of the places of the moved tokens."""
        import torch.nn.functional as F

        place = batch.fields["place"]
        logits = model.objective_heads[HEAD](hidden).float()
        total = F.cross_entropy(logits, place, ignore_index=IGNORE, reduction="sum")
        return Loss({"reorder": Term(total, int((place != IGNORE).sum()))})
