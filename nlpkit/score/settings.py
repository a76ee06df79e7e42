"""The `eval:` section of a recipe. Importable without torch."""

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from nlpkit.config import FrozenConfig
from nlpkit.score.named import WrongScore, is_option, split


def _known(entry: str) -> str:
    """Return the entry; raise `ValueError` if it is neither a score nor an option of a score."""
    if not is_option(entry):  # in a YAML flow list, a comma before an option starts a new entry
        _checked([entry])
    return entry


def _checked(entries: list[str]) -> list[str]:
    try:
        return split(entries)
    except WrongScore as error:
        raise ValueError(error.what if [error.name] == entries else error.message) from error


class Config(FrozenConfig):
    """The scores of a task."""

    metrics: list[Annotated[str, AfterValidator(_known)]] | None = Field(
        None,
        min_length=1,
        description="scores of nlpkit score, options behind a colon, instead of the task's own: in "
        "evaluations while it trains, and where nlpkit eval is given none",
    )

    @field_validator("metrics")
    @classmethod
    def _whole(cls, metrics: list[str] | None) -> list[str] | None:
        return None if metrics is None else _checked(metrics)
