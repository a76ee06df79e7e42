"""The file of an experiment: conditions, what is equal, seeds, and what is expected. No torch.

A condition is a recipe with settings of its own, over those that the file has for all conditions.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import RecipeError
from nlpkit.evaluate import suite
from nlpkit.json_types import JsonObject
from nlpkit.recipe.places import Document, dotted, flatten
from nlpkit.report.history import FIGURES
from nlpkit.score import named
from nlpkit.train.settings import Config as Train
from nlpkit.train.settings import Words
from nlpkit.train.state import LOSS
from nlpkit.units import parse_duration

PAIRS, PART = "pairs", "loss."  # figures beside `FIGURES`: of `eval.pairs`, of parts of the loss
_OF_RUNS = (*FIGURES, PAIRS, "reward_accuracy")  # what evaluations during a run have; dpo the last
_NAME = r"^\w[\w.-]*$"
_LENGTHS = {name: f"train.{name}" for name in ("steps", "words")}
_LENGTHS |= dict.fromkeys(("time", "cpu_time"), "train.budget")
_WRITING = ("beam", "length_penalty", "length_penalty_form")  # settings of `eval`


class Sections(suite.Sections):
    """Changes to the sections of a recipe; with the name of a part, a section is replaced."""

    model: dict[str, Any] = Field({})
    tokenizer: dict[str, Any] = Field({})
    attention: dict[str, Any] = Field({})
    lora: dict[str, Any] | None = Field(None)


class Condition(Sections):
    """One of what is compared."""

    recipe: str = Field("", description="a file, or a packaged recipe")
    evaluates: str | None = Field(None, description="a condition before it, with other beams")
    start: str | None = Field(None, alias="from", description="a condition before, or checkpoint")
    rates: suite.Rates | None = Field(None, description="in place of those of the file")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.recipe) == (self.evaluates is not None):
            raise ValueError("give recipe, or evaluates")
        said = {*self.model_dump(by_alias=True, exclude_unset=True)}
        more = (said - {"evaluates", "eval"}) | ({*self.eval} - {*_WRITING})
        if self.evaluates is not None and more:
            raise ValueError(f"evaluates excludes {min(more)}; set {', '.join(_WRITING)} in eval")
        return self


# As it is written, if it is one; `parse_duration` returns no 0.
Time = Annotated[str, AfterValidator(lambda text: parse_duration(text) and text)]


class Equal(FrozenConfig):
    """What all conditions without `from` have the same amount of; one of these."""

    steps: int | None = Field(None, gt=0)
    tokens: int | None = Field(None, gt=0, description="as many whole steps as they fill")
    words: Words | None = Field(None, description="of the text, such as 10M")
    time: Time | None = Field(None, description="of training, such as 10m")
    cpu_time: Time | None = Field(None, description="of training, in CPU time of the process")
    flops: float | None = Field(None, gt=0, description="as many whole steps as they fill")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            raise ValueError(f"give one of {', '.join(type(self).model_fields)}, not {len(given)}")
        return self

    def count_steps(self, plan: JsonObject) -> int:
        """Return the steps of a plan; of the plan of one step, as many as tokens or FLOPs need."""
        if self.tokens:
            return int(self.tokens / plan["tokens"])
        return int(self.flops / plan["flops_per_step"]) if self.flops else int(plan["steps"])


def is_score(figure: str) -> bool:
    """Return whether `nlpkit eval` computes a figure when it is asked to."""
    return not (figure in _OF_RUNS or figure.startswith(PART))


def _check_figure(figure: str) -> str:
    """Return the figure as `nlpkit eval` calls it; raise `ValueError` unless it is one."""
    try:
        found = named.split([figure]) if is_score(figure) else [figure]
    except named.WrongScore as error:
        near = registry.suggest(figure, [*FIGURES, PAIRS])
        known = f"{error.what}; {', '.join(_OF_RUNS)}"
        raise ValueError(f"no {figure!r}{near}" if near else known) from error
    if len(found) > 1:
        raise ValueError(f"{figure!r} is {len(found)} figures; give one")
    return found[0]


# Earlier versions have recorded null, and one name.
Names = Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v or [])]


class Expectation(FrozenConfig):
    """`better` than the other one in a figure, or the `same` within a share of its value.

    Of several conditions, such as tasks of one base, it is the mean of each seed.
    """

    better: Names = Field([])
    same: Names = Field([])
    than: Names = Field(min_length=1, description="the condition that it is compared with")
    by: Annotated[str, AfterValidator(_check_figure)] = LOSS  # after the last step
    within: float | None = Field(None, gt=0, lt=1, description="with same: share of the figure")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.better) == bool(self.same) or bool(self.same) != (self.within is not None):
            raise ValueError("give better, or same and within, a share such as 0.02")
        if {*self.than} == {*self.better, *self.same}:
            raise ValueError(f"compares {' and '.join(self.than)} with itself")
        return self

    @property
    def conditions(self) -> list[str]:
        """All that the expectation names."""
        return [*self.better, *self.same, *self.than]

    def __str__(self) -> str:
        first, than = (" and ".join(side) for side in (self.better or self.same, self.than))
        how = "better than" if self.within is None else f"within {self.within:g} of"
        return f"{first} {how} {than} by {self.by}"


class Rule(FrozenConfig):
    """How a verdict is found: by an exact test over seeds, one-sided."""

    test: Literal["permutation"] = "permutation"
    level: float = Field(0.05, gt=0, lt=0.5, description="the largest p that is a verdict")


class Experiment(Sections):
    """The file."""

    name: str = Field(pattern=_NAME, description="its runs are in runs/NAME")
    claim: str = Field("", description="in one sentence")
    paper: str = Field("", description="paper and section")
    figure: str = Field("", description="what the paper has measured")
    minutes: float | None = Field(None, gt=0, description="of all runs, on one core")
    folder: str = Field("", description="folder of the files in data and eval.pairs; or --folder")
    conditions: dict[Annotated[str, Field(pattern=_NAME)], Condition] = Field(min_length=2)
    equal: Equal | None = Field(None, description="default: what the recipes say")
    parameters: float | None = Field(None, ge=0, description="share by which sizes may differ")
    rates: suite.Rates | None = Field(None, description="to try for each condition")
    seeds: int = Field(3, gt=0, le=10, description="runs of each condition")
    first_seed: int = Field(1, ge=1, description="their seeds are it and the next ones")
    expect: list[Expectation] = Field(min_length=1)
    rule: Rule = Rule()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = list(self.conditions)
        for name in names:
            own = self.conditions[name]
            for key, other in (("evaluates", own.evaluates), ("from", own.start)):
                is_run = other in names or key == "evaluates"
                if other and is_run and other not in self.list_before(name):
                    raise ValueError(f"conditions.{name}.{key}: {other} is no run before it")
        for number, each in enumerate(self.expect):
            for name in {*each.conditions} - {*names}:
                known = registry.suggest(name, names) or f"; known: {', '.join(names)}"
                raise ValueError(f"expect.{number}: no condition {name}{known}")
            tried = {name: len(self.list_rates(name)) for name in each.conditions}
            if len({*tried.values()}) > 1:
                said = ", ".join(f"{count} for {name}" for name, count in tried.items())
                raise ValueError(f"expect.{number}: rates to try: {said}; give all as many")
        return self

    @property
    def trained(self) -> list[str]:
        """The conditions that are trained: all but those that evaluate the runs of another one."""
        return [name for name, each in self.conditions.items() if each.evaluates is None]

    @property
    def seed_numbers(self) -> range:
        """The seeds of each condition."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def list_before(self, name: str) -> list[str]:
        """Return the trained conditions before one."""
        names = list(self.conditions)
        return [each for each in self.trained if names.index(each) < names.index(name)]

    def list_rates(self, name: str) -> list[float]:
        """Return the learning rates to try for a condition; none if it takes its recipe's."""
        own = self.conditions[self.find_trained(name)].rates
        return (self.rates or []) if own is None else own

    def find_trained(self, name: str) -> str:
        """Return the condition whose runs are evaluated: itself, or what it `evaluates`."""
        return self.conditions[name].evaluates or name

    def find_base(self, name: str) -> str | None:
        """Return the condition that another one begins with, or None."""
        start = self.conditions[name].start
        return start if start in self.list_before(name) else None

    def list_changes(self, name: str, folder: str, steps: int = 1) -> list[str]:
        """Return the settings of a condition, as `--set` takes them; `folder` has its data.

        So many `steps` have the equal tokens or FLOPs; one is planned before that is known.
        """
        trained = self.conditions[self.find_trained(name)]
        sections = [trained, self.conditions[name]]  # often the same
        if trained.start is not None:
            changes = suite.list_settings(sections, folder)
            changes |= {} if self.find_base(name) else {"init_from": trained.start}
        else:
            changes = suite.list_settings([self, *sections], folder)
            equal = self.equal.model_dump(exclude_none=True) if self.equal else {}
            for key, value in equal.items():
                changes[_LENGTHS.get(key, "train.steps")] = value if key in _LENGTHS else steps
            if equal.keys() & {"time", "cpu_time"}:
                changes["train.budget_clock"] = "cpu" if "cpu_time" in equal else "training"
        judged = any(each.by == PAIRS and name in each.conditions for each in self.expect)
        if judged or "eval.pairs" in changes:  # the same for all, whatever they cost
            changes.setdefault("eval.max_pairs", "all")
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]

    def check_decided(self, document: Document) -> None:
        """Raise `RecipeError` for each setting in whose place `equal` or `rates` would decide."""
        lengths = {}
        if self.equal is not None:
            (key,) = self.equal.model_dump(exclude_none=True)
            lengths = dict.fromkeys([*Train.ALTERNATIVES[0], "budget_clock"], f"equal.{key}")
        entries = [("", self.train, True, self.rates)] + [
            (f"conditions.{name}.", each.train, each.start is None, self.list_rates(name))
            for name, each in self.conditions.items()
        ]
        problems = []
        for where, train, is_equal, rates in entries:
            decided = (lengths if is_equal else {}) | ({"lr": "rates"} if rates else {})
            for key in [key for key in train if key in decided and train[key] is not None]:
                what = f"{decided[key]} decides it; remove one of the two"
                problems.append(document.locate(f"{where}train.{key}: {what}"))
        if problems:
            raise RecipeError(problems)

    def dump(self) -> JsonObject:
        """Return what the file says, without defaults: those of later versions change nothing."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def hash(self) -> str:
        """Return what identifies the experiment with its rule."""
        return hashlib.sha256(json.dumps(self.dump(), sort_keys=True).encode()).hexdigest()

    def check_unchanged(self, before: JsonObject, document: Document, out: Path) -> None:
        """Raise `RecipeError` if the file says other than `before`, naming what has changed."""
        dumps = (Experiment.model_validate(before).dump(), self.dump())
        old, new = (dict(flatten(each)) for each in dumps)
        advice = f"has changed since the first run ({out}); a new experiment needs another name"
        changed = [dotted(path) for path in old | new if old.get(path, ...) != new.get(path, ...)]
        if changed:
            raise RecipeError([document.locate(f"{name}: {advice}") for name in changed])
