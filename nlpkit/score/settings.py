"""The `eval:` section of a recipe. Importable without torch."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from nlpkit.config import FrozenConfig, LengthPenalty, LengthPenaltyForm
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.task import Task
from nlpkit.score.named import WrongScore, is_option, split

if TYPE_CHECKING:
    from nlpkit.contracts.objective import ModelSettings, Objectives

_OF_ANSWERS = ("beam", "length_penalty", "length_penalty_form")
_WITHOUT_PAIRS = dict.fromkeys(("max_pairs", "pairs_method"), "without eval.pairs")


def _check_entry(entry: str) -> str:
    """Return the entry; raise `ValueError` if it is neither a score nor an option of a score."""
    if not is_option(entry):  # in a YAML flow list, a comma before an option starts a new entry
        _split([entry])
    return entry


def _split(entries: list[str]) -> list[str]:
    try:
        return split(entries)
    except WrongScore as error:
        raise ValueError(error.what if [error.name] == entries else error.message) from error


def _make_keys_text(value: Any) -> Any:
    """Return a mapping with its keys as text; in YAML, a class such as 0 is a number."""
    return {str(key): text for key, text in value.items()} if isinstance(value, dict) else value


class Prompt(FrozenConfig):
    """How `nlpkit shots` shows a row as text; the default of each setting is the task's."""

    template: str | None = Field(
        None, min_length=1, description="text of a row; {COLUMN} is a value, {{ and }} are braces"
    )
    answer_prefix: str | None = Field(None, description="text between the prompt and the answer")
    separator: str | None = Field(None, min_length=1, description="text between two examples")
    neutral: str | None = Field(
        None, description="prompt without a row, for the option score neutral"
    )
    labels: Annotated[dict[str, str], BeforeValidator(_make_keys_text)] | None = Field(
        None, description="text of each class in place of its name: {0: negative, 1: positive}"
    )
    option_score: Literal["sum", "token", "neutral"] = Field(
        "sum",
        description="log-probability of an answer: its sum, its mean per token, or its sum minus "
        "the sum after the neutral prompt",
    )


class Config(FrozenConfig):
    """The scores of a task, how answers are generated, and how its rows are shown as text."""

    metrics: list[Annotated[str, AfterValidator(_check_entry)]] | None = Field(
        None,
        min_length=1,
        description="scores of nlpkit score, with options after a colon, in place of the task's "
        "own: in evaluations during training, and the default of nlpkit eval",
    )

    beam: int = Field(
        1,
        ge=1,
        description="number of beams for generated answers; the default of nlpkit eval",
        json_schema_extra={"free": True},
    )
    length_penalty: LengthPenalty = Field(
        1.0,
        description="beams are ranked by log-probability / length ** this; the default of "
        "nlpkit eval",
        json_schema_extra={"free": True},
    )
    length_penalty_form: LengthPenaltyForm = Field(
        "power",
        description="gnmt: they are by log-probability / ((5 + length) / 6) ** this",
        json_schema_extra={"free": True},
    )
    prompt: Prompt = Field(
        default_factory=Prompt,
        description="how a row is shown as text, for nlpkit shots",
        json_schema_extra={"free": True},
    )

    baseline: int | None = Field(
        None,
        ge=2,
        le=6,
        description="order N of an n-gram model of the training text (modified Kneser-Ney); the "
        "plan, the run and its report show its loss on the held-out text",
        json_schema_extra={"free": True},
    )

    pairs: list[str] | None = Field(
        None,
        min_length=1,
        description="files of minimal pairs, as nlpkit judge --pairs takes them: the accuracy on a "
        "sample is a figure of each evaluation, the score pairs of train.best_by",
    )
    max_pairs: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None, description="pairs at each evaluation, or all; default: 5 % of the run's computation"
    )
    pairs_method: str | None = Field(
        None, description="how pairs are scored, as nlpkit judge --method: mntp, pll-word-l2r"
    )

    def unread(self, model: "ModelSettings | None", objectives: "Objectives") -> dict[str, str]:
        """See `FrozenConfig`."""
        of_search = self.max_pairs == "all" and "pairs" in self.model_fields_set  # pairs: null
        found = {} if self.pairs or of_search else _WITHOUT_PAIRS
        if not any(issubclass(made, Task) and issubclass(made, Continues) for made in objectives):
            return found | dict.fromkeys(_OF_ANSWERS, "with an objective that generates no answers")
        of_beams = _OF_ANSWERS[1:] if self.beam == 1 else ()
        return found | dict.fromkeys(of_beams, "with beam 1, without --beam of nlpkit eval")

    @field_validator("metrics")
    @classmethod
    def _whole(cls, metrics: list[str] | None) -> list[str] | None:
        return None if metrics is None else _split(metrics)
