"""Settings of `train` that change in the course of a run: `[{until: 0.5, value: 0.1}, {value: 0}]`.

`until` is a share of the run: a phase has the steps that begin before this share is done, as the
learning rate counts it (steps, epochs or a budget of time). So the phase of a step follows from the
state of the run, and a resumed run takes the same steps. Importable without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.train.settings import Config

T = TypeVar("T")
# Settings that may be a list; `max_length` is one of `objective`.
TYPES = {"tokens_per_step": int, "weight_decay": float, "max_length": int}

Phases = Sequence[Mapping[str, float]]  # `until` and `value`; the last may have no `until`


class Phase(FrozenConfig, Generic[T]):
    """A value, and the share of the run until which it holds."""

    until: float | None = Field(None, gt=0, le=1)
    value: T


def take_lists(given: JsonObject, fields: Mapping[str, FieldInfo]) -> JsonObject:
    """Return a section with each list moved to `phases`, its largest value in its place.

    Raises:
        ValidationError: a list is wrong.
    """
    if "phases" in given:  # where the lists are kept
        raise _mistake(("phases",), "unknown setting")
    named = [name for name in TYPES if name in fields and isinstance(given.get(name), list)]
    types: dict[str, Any] = {}
    for name in named:
        _check_keys(name, given[name])
        kind: Any = Annotated[(TYPES[name], *fields[name].metadata)]
        types[name] = (list[Phase[kind]], Field(min_length=1))
    lists = create_model("Lists", __base__=FrozenConfig, **types).model_validate(
        {name: given[name] for name in named}
    )
    given, phases = dict(given), {}
    for name in named:
        found = getattr(lists, name)
        _check(name, found)
        phases[name] = [each.model_dump(exclude_none=True) for each in found]
        given[name] = max(each.value for each in found)
    decided = any(given.get(name) for name in ("tokens_per_batch", "memory", "rows_per_step"))
    if "tokens_per_step" in named and not decided:
        common = math.gcd(*(int(each["value"]) for each in phases["tokens_per_step"]))
        given["tokens_per_batch"] = next(n for n in range(4096, 0, -1) if common % n == 0)
    return given | {"phases": phases}


def _check_keys(name: str, phases: Sequence[object]) -> None:
    for number, phase in enumerate(phases):
        for key in phase if isinstance(phase, dict) else ():
            if key not in (known := Phase.model_fields):
                near = registry.suggest(key, known) or f"; known: {', '.join(known)}"
                raise _mistake((name, number, key), f"unknown setting{near}")


def _check(name: str, phases: Sequence[Phase[Any]]) -> None:
    before = 0.0
    for number, phase in enumerate(phases):
        place: tuple[str | int, ...] = (name, number, "until")
        if phase.until is None:
            if number < len(phases) - 1:
                raise _mistake(place[:2], "only the last entry has no `until`")
            continue
        if phase.until <= before:
            raise _mistake(place, f"must be more than that of the entry before, {before:g}")
        before = phase.until
    if phases[-1].until not in (None, 1.0):
        raise _mistake(place, "the last entry holds to the end of the run; remove its `until`")


def _mistake(place: tuple[str | int, ...], what: str) -> ValidationError:
    error = InitErrorDetails(
        type=PydanticCustomError("phases", "{what}", {"what": what}), loc=place, input=None
    )
    return ValidationError.from_exception_data("Lists", [error])


def value_at(phases: Phases, progress: float) -> float:
    """Return the value of the step that begins when this share of the run is done."""
    found = (each["value"] for each in phases if progress < each.get("until", 1))
    return next(found, phases[-1]["value"])


def take_lengths(given: JsonObject, own: Sequence[str], config: type[FrozenConfig]) -> JsonObject:
    """Return the section `objective`, its settings checked, with a list `max_length` in `lengths`.

    Raises:
        ValidationError: the list or another setting is wrong.
    """
    kept = {name: given[name] for name in own if name in given}
    settings = {name: given[name] for name in given if name not in kept}
    if "max_length" not in config.model_fields:  # an unknown setting
        return kept | {"config": config.model_validate(settings)}
    taken = take_lists({"max_length": given["max_length"]}, config.model_fields)
    settings["max_length"] = taken["max_length"]
    lengths = taken["phases"]["max_length"]
    return kept | {"lengths": lengths, "config": config.model_validate(settings)}


def count_batches(settings: Config, steps: int) -> Callable[[int], int]:
    """Return how many batches step 1, 2, … of a run of so many steps has."""
    phases, budget = settings.phases["tokens_per_step"], settings.batch_budget
    return lambda step: int(value_at(phases, (step - 1) / steps)) // budget


def mean_batches(settings: Config) -> Fraction:
    """Return the mean number of batches of a step, by the shares of the phases."""
    mean, before = Fraction(0), Fraction(0)
    for each in settings.phases["tokens_per_step"]:
        until = Fraction(repr(each.get("until", 1)))
        mean += (until - before) * (int(each["value"]) // settings.batch_budget)
        before = until
    return mean
