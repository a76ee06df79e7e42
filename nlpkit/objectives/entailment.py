"""Textual entailment: start, premise, delimiter, hypothesis, extract (Radford et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field as Setting

from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Wording
from nlpkit.data.template import TextOf, as_template, columns
from nlpkit.objectives.tasks.states import LabelConfig, LabelTask

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings
    from nlpkit.contracts.tokenizer import Extendable


class Config(LabelConfig):
    """The columns of a row."""

    premise: TextOf = Setting("premise", description="column of the premise, or a template")
    hypothesis: TextOf = Setting(
        "hypothesis", description="column of the hypothesis, or a template"
    )


class Objective(LabelTask):
    """Examples and loss of textual entailment."""

    metrics = ("accuracy", "f1")

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return premise and hypothesis, and a line for the class."""
        premise, hypothesis = map(as_template, (config.premise, config.hypothesis))
        return Wording(f"{premise}\nHypothesis: {hypothesis}\nLabel:", neutral="Label:")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.columns = self.named_columns(config)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        """Return the columns of both texts and of the class."""
        return columns(config.premise, config.hypothesis, config.label)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return premise and hypothesis; raise `RowError`."""
        self.label(row)
        return row.text(self.config.premise), row.text(self.config.hypothesis)
