"""Textual entailment: start, premise, delimiter, hypothesis, extract (Radford et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field as Setting

from nlpkit.data.items import Row
from nlpkit.objectives._states import LabelConfig, LabelTask
from nlpkit.objectives._task import Wording

if TYPE_CHECKING:
    from nlpkit.objectives.contract import ModelSettings
    from nlpkit.tokenizers.contract import Extendable


class Config(LabelConfig):
    """The columns of a row."""

    premise: str = Setting("premise", min_length=1, description="column of the premise")
    hypothesis: str = Setting("hypothesis", min_length=1, description="column of the hypothesis")


class Objective(LabelTask):
    """Examples and loss of textual entailment."""

    metrics = ("accuracy", "f1")

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return premise and hypothesis, and a line for the class."""
        lines = f"{{{config.premise}}}\nHypothesis: {{{config.hypothesis}}}\nLabel:"
        return Wording(lines, neutral="Label:")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.columns = (config.premise, config.hypothesis, config.label)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return premise and hypothesis; raise `RowError`."""
        self.label(row)
        return row.text(self.config.premise), row.text(self.config.hypothesis)
