"""Sums losses over batches and processes; each term is averaged over its own targets."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator

from nlpkit.objectives.contract import Loss


class LossSums:
    """The loss sum and the number of targets of each term and of each part, over batches."""

    def __init__(self) -> None:
        self.terms: dict[str, tuple[float, float]] = {}
        self.parts: dict[str, tuple[float, float]] = {}
        self.weights: dict[str, float] = {}
        self.text_terms: set[str] = set()  # terms whose targets are tokens

    def add(self, loss: Loss, *, counted: bool = True) -> None:
        """Add the loss of a batch; one that is not counted only makes its terms known.

        All processes must have the same terms before `reduce`.
        """
        for name, term in loss.terms.items():
            self.weights[name] = term.weight
            if term.of_text:
                self.text_terms.add(name)
            term_sum = float(term.loss_sum.detach()) if counted else 0.0
            _add(self.terms, name, term_sum, term.num_targets if counted else 0)
        for name, (total, number) in loss.parts.items():
            _add(self.parts, name, float(total) if counted else 0.0, number if counted else 0)

    def reduce(self, accelerator: Accelerator) -> None:
        """Replace the sums by sums over all processes."""
        for sums in (self.terms, self.parts):
            names = sorted(sums)
            flat = reduced(accelerator, [x for name in names for x in sums[name]])
            for i, name in enumerate(names):
                sums[name] = flat[2 * i], flat[2 * i + 1]

    @property
    def mean(self) -> float:
        """The minimized loss: the weighted sum of the terms' means over their targets."""
        return sum(
            self.weights[name] * (total / number)
            for name, (total, number) in self.terms.items()
            if number
        )

    @property
    def means(self) -> dict[str, float | None]:
        """The mean of each part; None for a part without targets."""
        return {name: total / n if n else None for name, (total, n) in self.parts.items()}

    @property
    def num_targets(self) -> int:
        """The number of targets of the first term."""
        return int(next(iter(self.terms.values()))[1])

    @property
    def text(self) -> tuple[float, float]:
        """The loss sum in nats over targets that are tokens, and the number of these targets."""
        terms = [self.terms[name] for name in self.text_terms]
        return sum(total for total, _ in terms), sum(number for _, number in terms)


def _add(sums: dict[str, tuple[float, float]], name: str, total: float, number: float) -> None:
    before = sums.get(name, (0.0, 0.0))
    sums[name] = before[0] + total, before[1] + number


def reduced(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Return the sums of these numbers over all processes."""
    if accelerator.num_processes == 1:
        return [float(value) for value in values]
    tensor = torch.tensor([float(v) for v in values], dtype=torch.float64)
    return accelerator.reduce(tensor.to(accelerator.device), "sum").tolist()
