"""Translation: the target token by token, from the source and what stands before.

Rows have `source` and `target`, as the reader of parallel files gives them. The decoder begins with
`<s>`; the target and `</s>` are predicted.
S tokens of a source, T of a target with `</s>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.data.items import Row
from nlpkit.objectives._task import Item, Task, counted, shorten
from nlpkit.objectives.contract import Field, Loss, Prompt, Term, check_length

if TYPE_CHECKING:
    import torch

    from nlpkit.data.pack import Batch

BEGIN, END = "<s>", "</s>"


class Config(FrozenConfig):
    """How long the two may be."""

    max_length: int = Setting(128, gt=1, description="longest source, and longest target")


class Objective(Task):
    """Examples and loss of translation."""

    columns = ("source", "target")
    parts = ("translation",)
    inputs = ("input_ids", "source_ids", "source_lengths")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "labels": Field(np.int64),
        "source_ids": Field(np.int64, per="source"),
    }
    needs = ("has_vocabulary", "encodes_source", "causal")
    predicts_text = True
    metrics = ("bleu",)

    def __init__(self, config: Config, tokenizer: Any, model_config: Any):
        """Bind the settings.

        Raises:
            ValueError: `max_length` is more than the model has positions.
        """
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)
        self.begin, self.end = (tokenizer.special_id(token) for token in (BEGIN, END))
        self.longest, self.ends = config.max_length, (self.end,)

    @classmethod
    def special_tokens(cls, model_config: Any) -> tuple[str, ...]:
        """Return what begins and what ends a target."""
        return BEGIN, END

    @property
    def never(self) -> tuple[int, ...]:
        """Tokens that are no target."""
        ids = (self.begin, self.tokenizer.pad_id)
        return tuple(token_id for token_id in ids if token_id is not None)

    def continue_text(self, ids: Sequence[int], room: int) -> Prompt:
        """Return the begin token, the text as its source, and `room` slots.

        Raises:
            ValueError: the source is empty.
        """
        source, cut = shorten(ids, self.config.max_length, "start")
        if not len(source):
            raise ValueError("the source is empty")
        places = np.full(room, -1)
        places[0] = 0
        return Prompt(
            {"input_ids": np.array([self.begin], np.int64)},
            {},
            places,
            np.empty(0, np.int64),
            cut=cut,
            source={"source_ids": source.astype(np.int64)},
        )

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return source and target; raise `RowError`."""
        return row.text("source"), row.text("target")

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return a row whose ends are cut to the room."""
        source, source_cut = shorten(ids[0], self.config.max_length, "start")
        target, target_cut = shorten(ids[1], self.config.max_length - 1, "start")
        cut = counted(source_cut, "source") | counted(target_cut, "target")
        values = row.values
        size = len(target) + 1
        return Item((source, target), values["target"], size, cut, values["source"])

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, each (T,), and the source (S,); nothing is random."""
        source, target = (part.astype(np.int64) for part in item.parts)
        return {
            "input_ids": np.concatenate([[self.begin], target]),
            "labels": np.concatenate([target, [self.end]]),
            "source_ids": source,
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the number of predicted tokens: all of the targets."""
        return {"translation": len(batch["labels"])}

    def loss(self, model: Any, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the targets."""
        import torch

        labels = batch.fields["labels"]
        index = torch.arange(len(labels), device=labels.device)
        loss_sum, token_losses = model.token_loss(hidden, index, labels)
        parts = {"translation": (token_losses.sum(), len(labels))}
        return Loss({"translation": Term(loss_sum, len(labels), parts=parts, of_text=True)})
