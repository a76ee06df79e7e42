"""The state of a run, except weights and optimizer."""

from dataclasses import asdict, dataclass, field
from typing import Any

from nlpkit.data.loader import Position
from nlpkit.train import best_evaluation


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

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def from_json(cls, values: dict[str, Any], best_by: str) -> "State":
        """Return the state from the values of `to_json`, also of older versions.

        Older versions have `best_loss` instead: the loss, or minus the score `best_by`.
        """
        values = values | {"position": Position(*values["position"])}
        if "best_loss" in values:
            old = values.pop("best_loss")
            is_score = old is not None and best_by != best_evaluation.LOSS
            values["best_value"] = -old if is_score else old
        return cls(**values)
