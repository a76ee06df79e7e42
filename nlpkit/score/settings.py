"""The `eval:` section of a recipe. Importable without torch."""

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from nlpkit.config import FrozenConfig
from nlpkit.score.named import WrongScore, goes_on, split


def _known(entry: str) -> str:
    """Return what stands in the list; raise `ValueError` if it names no score."""
    if not goes_on(entry):  # a comma between a score's options makes entries of them in a flow list
        _checked([entry])
    return entry


def _checked(entries: list[str]) -> list[str]:
    try:
        return split(entries)
    except WrongScore as error:
        raise ValueError(error.what if [error.name] == entries else error.message) from error


class Config(FrozenConfig):
    """How a task is judged."""

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
