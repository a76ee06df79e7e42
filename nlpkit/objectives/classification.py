"""Classifies texts: start, text, extract (Radford et al. 2018, sec. 3.3).

Several texts (a list of columns, or a template with `[SEP]`) have the family's delimiter between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field as Setting

from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Wording
from nlpkit.data.template import TextsOf, apart, as_template, columns
from nlpkit.objectives.tasks.states import LabelConfig, LabelTask

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings
    from nlpkit.contracts.tokenizer import Extendable


class Config(LabelConfig):
    """The columns of a row."""

    text: TextsOf = Setting(
        "text",
        description="column of the text, a list of columns that stand apart, or a template: "
        "'{premise}[SEP]{hypothesis}'",
    )

    @property
    def texts(self) -> list[str]:
        """Columns and templates of the texts that stand apart."""
        return apart(self.text)


class Objective(LabelTask):
    """Examples and loss of text classification."""

    metrics = ("accuracy", "f1")

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the text, and a line for its class."""
        return Wording(f"{as_template(config.texts)}\nLabel:", neutral="Label:")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.columns = self.named_columns(config)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        """Return the columns of the texts and of the class."""
        return columns(*config.texts, config.label)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts; raise `RowError`."""
        self.label(row)
        return tuple(row.text(text) for text in self.config.texts)
