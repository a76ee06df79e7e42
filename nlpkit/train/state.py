"""The state of a run, except weights and optimizer."""

from dataclasses import asdict, dataclass, field
from typing import Any

from nlpkit.data.loader import Position
from nlpkit.train import best_evaluation
from nlpkit.train.schedule import stable_end
from nlpkit.train.settings import ResolvedTraining

ALMOST = 1 - 1e-6  # the most that is done of a run which is not at its end


@dataclass
class Times:
    """Seconds of a run with a budget of time; all are 0 in another run."""

    budget: float = 0.0
    elapsed: float = 0.0  # used of the budget
    progress: float = 0.0  # share of the run that is done; 1: it is at its end
    step: float = 0.0  # time of a step
    evaluation: float = 0.0  # time of the last evaluation
    saving: float = 0.0  # time of the last checkpoint
    near_end: float = 0.0  # 1: the end comes before an evaluation that is due now would
    stable_step: int = 0  # the step before the decay of the learning rate

    def follow(self, settings: ResolvedTraining) -> None:
        """Take the budget of the settings, which may be another one than that of the checkpoint."""
        budget = settings.budget_seconds
        if budget is None or budget == self.budget:
            return
        if self.progress < 1:
            self.progress = min(ALMOST, self.progress * self.budget / budget)
        elif budget > self.elapsed:
            self.progress = min(ALMOST, self.elapsed / budget)
        end = stable_end(settings)
        if end is not None and self.progress * settings.steps <= end:
            self.stable_step = 0
        self.budget, self.near_end = budget, 0.0


@dataclass
class State:
    """Counters and the best evaluation of a run; they are saved in checkpoints."""

    step: int = 0
    tokens: int = 0
    position: Position = field(default_factory=Position)
    best_value: float | None = None  # of the loss or score in `train.best_by`
    best_step: int = 0
    evaluations_without_gain: int = 0
    evaluated_step: int = 0
    times: Times = field(default_factory=Times)

    def progress(self, settings: ResolvedTraining) -> float:
        """Return the share of the run that is done, from 0 to 1."""
        if settings.budget_seconds is not None:
            return self.times.progress
        return self.step / settings.steps

    def is_over(self, settings: ResolvedTraining) -> bool:
        """Return whether the run is at its end, or stops early."""
        out_of_patience = settings.patience and self.evaluations_without_gain >= settings.patience
        return self.progress(settings) >= 1 or bool(out_of_patience)

    def is_stable_end(self, settings: ResolvedTraining) -> bool:
        """Return whether this is the last step before the decay of the learning rate."""
        if settings.budget_seconds is None:
            return self.step == stable_end(settings)
        return 0 < self.step == self.times.stable_step

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain values, with `times` only if the run has a budget."""
        values = asdict(self) | {"position": list(self.position)}
        if not self.times.budget:
            del values["times"]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any], best_by: str) -> "State":
        """Return the state from the values of `to_json`, also of older versions.

        Older versions have `best_loss` instead: the loss, or minus the score `best_by`.
        """
        values = values | {"position": Position(*values["position"])}
        values["times"] = Times(**values.get("times", {}))
        if "best_loss" in values:
            old = values.pop("best_loss")
            is_score = old is not None and best_by != best_evaluation.LOSS
            values["best_value"] = -old if is_score else old
        return cls(**values)
