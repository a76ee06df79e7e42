"""Notices that the held-out loss rises while the training loss falls."""

from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class Overfitting:
    """The losses of a run since it was started or resumed."""

    losses: list[float] = field(default_factory=list)  # of the steps since the last evaluation
    # (step, mean training loss before it, held-out loss) of the evaluations
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)
    is_known: bool = False

    def add(self, loss: float) -> None:
        """Add the training loss of a step."""
        self.losses.append(loss)

    def warning(self, step: int, held_out: float) -> str | None:
        """Add an evaluation; return a warning, once, if two in a row are worse than the best one.

        The training loss must have fallen since then.
        """
        if not self.losses:
            return None
        self.evaluations.append((step, fmean(self.losses), held_out))
        self.losses.clear()
        best = min(self.evaluations, key=lambda each: each[2])
        since = self.evaluations[self.evaluations.index(best) + 1 :]
        falls = all(training < best[1] for _, training, _ in since)
        if self.is_known or len(since) < 2 or not falls:
            return None
        self.is_known = True
        return (
            f"the held-out loss has risen since step {best[0]}, from {best[2]:.4f} to "
            f"{held_out:.4f}, while the training loss fell from {best[1]:.4f} to "
            f"{since[-1][1]:.4f}: the model learns its training data by heart. More data, "
            "model.dropout or train.weight_decay help; train.patience stops such a run"
        )
