"""Chooses one of several answers. Each is start, context question, delimiter, answer, extract.

Radford et al. 2018, sec. 3.3: one linear unit on each answer's state, softmax over the answers.
Rows may have different numbers of answers. Of a row that is too long the end of the context is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field as Setting

from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Question, Wording
from nlpkit.data.template import TextOf, as_template, columns
from nlpkit.json_types import JsonObject
from nlpkit.objectives.tasks.choices import OptionAs, any_option, find_option, read_options
from nlpkit.objectives.tasks.framed import FramedConfig
from nlpkit.objectives.tasks.rows import group_softmax_loss, numbers, predictions
from nlpkit.objectives.tasks.states import StateTask

if TYPE_CHECKING:
    import torch


class Config(FramedConfig):
    """The columns of a row."""

    context: TextOf = Setting("context", description="column of the context, or a template")
    question: TextOf | None = Setting(
        None, description="column of the question, if there is one, or a template"
    )
    options: str | list[str] = Setting(
        "options", min_length=1, description="column of the list of answers, or a column for each"
    )
    label: str = Setting("label", min_length=1, description="column of the right answer")
    label_as: OptionAs = Setting(
        "number",
        description="what the label is: number (from 0), text (that of the answer), or names of "
        "the answers in their order: [A, B, C, D]",
    )

    @property
    def given(self) -> list[str]:
        """Columns and templates of context and question."""
        return [self.context] + ([self.question] if self.question else [])


class Objective(StateTask):
    """Examples and loss of multiple choice."""

    outputs = 1
    head_kind = "multiple_choice"
    metrics = ("accuracy",)

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the context and the question; an answer continues them."""
        return Wording(as_template(config.given, " "))

    @classmethod
    def question(cls, config: Config, row: Row) -> Question:
        """Return the answers with their numbers; raise `RowError`."""
        found = answers(config, row)
        index = _label(config, row)
        return Question(tuple(found), numbers(found), found[index], str(index))

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        options = [config.options] if isinstance(config.options, str) else config.options
        return columns(*config.given, *options, config.label)

    def label(self, row: Row) -> float:
        return _label(self.config, row)

    def stand_in(self, row: Row) -> JsonObject:
        """See `AnswersUnlabelled`."""
        return {self.config.label: any_option(self.config.label_as, answers(self.config, row))}

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the context with the question, and the answers; raise `RowError`."""
        self.label(row)
        return " ".join(map(row.text, self.config.given)), *answers(self.config, row)

    def sequences(self, ids: list[list[int]]) -> list[list[list[int]]]:
        """Return one sequence for each answer: the context and the answer."""
        context, *options = ids
        return [[context, option] for option in options]

    def tail(self, row: Row, ids: list[list[int]]) -> int:
        """Return the number of the question's tokens, where the context has to be cut."""
        context, *options = ids
        longest = len(context) + max(map(len, options)) + self.frame.size(2)
        if self.config.question is None or longest <= self.config.max_length:
            return 0
        return max(len(context) - len(self.encode([row.text(self.config.context)])[0]), 0)

    def task_loss(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return cross entropy over each row's answers, summed over rows."""
        right = (batch["order"] == batch["label"].long()).nonzero().squeeze(1)
        return group_softmax_loss(outputs[:, 0], groups, right).sum()

    def predictions(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> list[tuple[str, str]]:
        """Return the indices of the chosen and the right answer of each row."""
        return predictions(outputs[:, 0], groups, batch["label"].long())


def answers(config: Config, row: Row) -> list[str]:
    """Return the answers of a row; raise `RowError`."""
    if not isinstance(config.options, str):
        return [row.text(column) for column in config.options]
    return read_options(row, config.options)


def _label(config: Config, row: Row) -> int:
    return find_option(row, config.label, config.label_as, answers(config, row), "label_as")
