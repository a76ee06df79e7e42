"""Similarity of two texts: the sum of the states of both orders (Radford et al. 2018, sec. 3.3).

The label is a class (paraphrase or not), or a number (as in STS-B) learned by squared error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Question
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.data.lines import kind_of
from nlpkit.data.template import TextOf
from nlpkit.json_types import JsonObject
from nlpkit.objectives.tasks.states import LabelConfig, LabelTask

if TYPE_CHECKING:
    import torch

_LARGEST = 3.4e38  # about that of float32, in which labels are


class Config(LabelConfig):
    """The columns of a row, and whether the label is a number."""

    text_a: TextOf = Setting("text_a", description="column of one text, or a template")
    text_b: TextOf = Setting("text_b", description="column of the other text, or a template")
    regression: bool = Setting(False, description="the label is a number, not a class")

    @property
    def texts(self) -> list[str]:
        """Both texts."""
        return [self.text_a, self.text_b]

    @model_validator(mode="after")
    def _numbers_stand_for_themselves(self) -> Self:
        if self.regression and self.choices is not None:
            raise ValueError("choices: excludes regression, whose labels are numbers; remove one")
        return self


class Objective(LabelTask):
    """Examples and loss of similarity."""

    @classmethod
    def question(cls, config: Any, row: Row) -> Question:
        """Return the classes as answers; raise `RowError` if the label is a number."""
        if config.regression:
            raise RowError("objective.regression: numbers cannot be chosen from; needs tuning")
        return super().question(config, row)

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        if config.regression:
            self.metrics = ("pearson", "spearman")

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1 if self.config.regression else len(self.config.labels)

    @classmethod
    def complete(cls, config: Any, rows: Iterable[Row]) -> Any:
        return config if config.regression else super().complete(config, rows)

    def label(self, row: Row) -> float:
        return number(row, self.config.label) if self.config.regression else super().label(row)

    def stand_in(self, row: Row) -> JsonObject:
        return {self.config.label: 0} if self.config.regression else super().stand_in(row)

    def sequences(self, ids: list[list[int]]) -> list[list[list[int]]]:
        """Return both orders, as neither text comes first."""
        first, second = ids
        return [[first, second], [second, first]]

    def task_loss(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return cross entropy or squared error, summed over rows."""
        import torch.nn.functional as F

        sums, right = _add_orders(outputs, groups, batch)
        if self.config.regression:
            return F.mse_loss(sums[:, 0], right, reduction="sum")
        return F.cross_entropy(sums, right.long(), reduction="sum")

    def predictions(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> list[tuple[str, str]]:
        """Return (most likely class, right class) or (number, right number) of each row."""
        sums, right = _add_orders(outputs, groups, batch)
        if self.config.regression:
            pairs = zip(sums[:, 0].tolist(), right.tolist(), strict=True)
            return [(repr(a), repr(b)) for a, b in pairs]
        labels = self.config.labels
        chosen = sums.argmax(1).tolist()
        return [(labels[a], labels[int(b)]) for a, b in zip(chosen, right.tolist(), strict=True)]


def _add_orders(
    outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums (G, O) of each row's sequences and the labels (G,).

    The layer is linear, so the sum of its outputs is its output for the paper's sum of states.
    """
    right = batch["label"][batch["order"] == 0]
    return outputs.new_zeros(len(right), outputs.shape[1]).index_add(0, groups, outputs), right


def number(row: Row, column: str) -> float:
    """Return the number in a column, which may be text; raise `RowError`."""
    value = row.value(column)
    try:
        parsed = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        parsed = math.nan
    if not abs(parsed) <= _LARGEST:
        raise RowError(f'"{column}" is {kind_of(value)}, not a finite number (of float32)')
    return parsed
