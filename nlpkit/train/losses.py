"""Sums losses over batches and processes; each term is averaged over its own targets.

The sums of the batches stay on the device until they are reduced, once a step: to read a number of
a GPU is to wait for it.
"""

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from nlpkit.contracts.batch import Loss


class LossSums:
    """The loss sum and the number of targets of each term and of each part, over batches."""

    def __init__(self) -> None:
        self.terms: dict[str, tuple[float | Tensor, float]] = {}
        self.parts: dict[str, tuple[float | Tensor, float]] = {}
        self.weights: dict[str, float] = {}
        self.text_terms: set[str] = set()  # terms whose targets are tokens

    def add(self, loss: Loss, *, counted: bool = True) -> None:
        """Add the loss of a batch; one that is not counted only makes its terms known.

        All processes must have the same terms before `reduce`.
        """
        for name, term in loss.terms.items():
            self.weights[name] = term.weight
            if term.is_text:
                self.text_terms.add(name)
            values = (term.loss_sum, term.num_targets) if counted else (0.0, 0)
            _add(self.terms, name, *values)
        for name, part in loss.parts.items():
            _add(self.parts, name, *(part if counted else (0.0, 0)))

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
            self.weights[name] * (float(total) / number)
            for name, (total, number) in self.terms.items()
            if number
        )

    @property
    def means(self) -> dict[str, float | None]:
        """The mean of each part; None for a part without targets."""
        return {name: float(total) / n if n else None for name, (total, n) in self.parts.items()}

    @property
    def num_targets(self) -> int:
        """The number of targets of the first term."""
        return int(next(iter(self.terms.values()))[1])

    @property
    def text(self) -> tuple[float, float]:
        """The loss sum in nats over targets that are tokens, and the number of these targets."""
        terms = [self.terms[name] for name in self.text_terms]
        return sum(float(total) for total, _ in terms), sum(number for _, number in terms)


def _add(
    sums: dict[str, tuple[float | Tensor, float]], name: str, total: float | Tensor, number: float
) -> None:
    """Add to the sums with 64 bits; MPS has none, and no tensor of it stays."""
    on_mps = isinstance(total, Tensor) and total.device.type == "mps"
    exact = total.detach().double() if isinstance(total, Tensor) and not on_mps else float(total)
    before = sums.get(name, (0.0, 0.0))
    sums[name] = before[0] + exact, before[1] + number


def reduced(accelerator: Accelerator, values: Sequence[float | Tensor]) -> list[float]:
    """Return the sums of these numbers over all processes."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if accelerator.num_processes == 1 and not tensors:
        return [float(value) for value in values]
    # All are read from the device at once.
    flat = torch.stack(
        [torch.as_tensor(value, dtype=torch.float64, device=accelerator.device) for value in values]
    )
    if accelerator.num_processes > 1:
        flat = accelerator.reduce(flat, "sum")
    return flat.tolist()
