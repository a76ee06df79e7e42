"""The right one of several answers: start, context question, delimiter, answer, extract, each.

Radford et al. 2018, sec. 3.3: one linear unit on each answer's state, softmax over the answers.
Rows may have different numbers of answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field as Setting

from nlpkit.data.items import Row
from nlpkit.objectives._states import StateConfig, StateTask
from nlpkit.objectives._task import RowError, group_softmax_loss, kind_of, predictions

if TYPE_CHECKING:
    import torch

    from nlpkit.objectives.contract import ModelSettings
    from nlpkit.tokenizers.contract import Extendable


class Config(StateConfig):
    """Which columns a row has."""

    context: str = Setting("context", min_length=1, description="column of the text that is asked")
    question: str | None = Setting(
        None, min_length=1, description="column of the question, if there is one"
    )
    options: str | list[str] = Setting(
        "options", min_length=1, description="column of the list of answers, or a column for each"
    )
    label: str = Setting(
        "label", min_length=1, description="column of the right answer's number, from 0"
    )


class Objective(StateTask):
    """Examples and loss of multiple choice."""

    outputs = 1
    metrics = ("accuracy",)

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        options = [config.options] if isinstance(config.options, str) else config.options
        asked = [config.context] + ([config.question] if config.question else [])
        self.columns = (*asked, *options, config.label)
        self.asked = asked

    def options(self, row: Row) -> list[str]:
        """Return the answers; raise `RowError`."""
        config = self.config
        if not isinstance(config.options, str):
            return [row.text(column) for column in config.options]
        found = row.value(config.options)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise RowError(f'"{config.options}" is {kind_of(found)}, not a list of strings')
        if not found:
            raise RowError(f'"{config.options}" is an empty list')
        return found

    def label(self, row: Row) -> float:
        """Return the number of the right answer; raise `RowError`."""
        value, count = row.value(self.config.label), len(self.options(row))
        # tsv and csv have only text.
        found = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < count:
            raise RowError(
                f'"{self.config.label}" is {value!r}, not the number of an option, 0 to {count - 1}'
            )
        return found

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return context (and question) and the answers; raise `RowError`."""
        self.label(row)
        return " ".join(row.text(column) for column in self.asked), *self.options(row)

    def sequences(self, ids: list[list[int]]) -> list[list[list[int]]]:
        """Return the context with each answer."""
        context, *options = ids
        return [[context, option] for option in options]

    def task_loss(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return cross entropy over each row's answers, summed over rows."""
        right = (batch["order"] == batch["label"].long()).nonzero().squeeze(1)
        return group_softmax_loss(outputs[:, 0], groups, right).sum()

    def predictions(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> list[tuple[str, str]]:
        """Return the number of the answer chosen and of the right one, for each row."""
        return predictions(outputs[:, 0], groups, batch["label"].long())
