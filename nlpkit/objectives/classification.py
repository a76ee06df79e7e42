"""Classifies single texts: start, text, extract (Radford et al. 2018, sec. 3.3)."""

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

    text: str = Setting("text", min_length=1, description="column of the text")


class Objective(LabelTask):
    """Examples and loss of text classification."""

    metrics = ("accuracy", "f1")

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the text, and a line for its class."""
        return Wording(f"{{{config.text}}}\nLabel:", neutral="Label:")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.columns = (config.text, config.label)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the text; raise `RowError`."""
        self.label(row)
        return (row.text(self.config.text),)
