"""The state of a run besides weights and optimizer."""

from dataclasses import asdict, dataclass, field
from typing import Any

from nlpkit.data.loader import Position
from nlpkit.train import best_evaluation


@dataclass
class State:
    """The state of a run besides weights and optimizer; it is saved in checkpoints."""

    step: int = 0
    tokens: int = 0
    position: Position = field(default_factory=Position)
    best_value: float | None = None  # of the figure that `train.best_by` names
    best_step: int = 0
    evaluations_without_gain: int = 0
    evaluated_step: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def from_json(cls, values: dict[str, Any], best_by: str) -> "State":
        """Return the state from the values of `to_json`, also of older versions.

        These had `best_loss` instead of `best_value`: the loss, or minus the score of `best_by`.
        """
        values = values | {"position": Position(*values["position"])}
        if "best_loss" in values:
            old = values.pop("best_loss")
            is_score = old is not None and best_by != best_evaluation.LOSS
            values["best_value"] = -old if is_score else old
        return cls(**values)
