"""Textual entailment: start, premise, delimiter, hypothesis, extract (Radford et al. 2018)."""

from pydantic import Field as Setting

from nlpkit.contracts.task import Wording
from nlpkit.data.template import TextOf, as_template
from nlpkit.objectives.tasks.states import LabelConfig, LabelTask


class Config(LabelConfig):
    """The columns of a row."""

    premise: TextOf = Setting("premise", description="column of the premise, or a template")
    hypothesis: TextOf = Setting(
        "hypothesis", description="column of the hypothesis, or a template"
    )

    @property
    def texts(self) -> list[str]:
        """Premise and hypothesis."""
        return [self.premise, self.hypothesis]


class Objective(LabelTask):
    """Examples and loss of textual entailment."""

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return premise and hypothesis, and a line for the class."""
        premise, hypothesis = map(as_template, config.texts)
        return Wording(f"{premise}\nHypothesis: {hypothesis}\nLabel:", neutral="Label:")
