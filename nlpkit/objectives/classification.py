"""Classifies texts: start, text, extract (Radford et al. 2018, sec. 3.3).

Several texts (a list of columns, or a template with `[SEP]`) have the family's delimiter between.
"""

from pydantic import Field as Setting

from nlpkit.data.template import TextsOf, apart
from nlpkit.objectives.tasks.states import LabelConfig, LabelTask


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
