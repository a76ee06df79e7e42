"""Held-out loss, perplexity and bits per character; every part of the objective apart."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from nlpkit.data.loader import Examples, held_out_batches
from nlpkit.errors import DataError, UsageError
from nlpkit.objectives.contract import IGNORE
from nlpkit.score import named
from nlpkit.train.loop import sums, to_device
from nlpkit.train.signals import StopFlag

_WHOLE = ""  # beside the parts: what is minimised


class HeldOut:
    """A held-out set whose examples are the same at every evaluation.

    `characters` (V,) says how many characters of text each token stands for.
    """

    def __init__(self, examples: Examples, budget: int, characters: np.ndarray):
        self.examples = examples
        self.bins, self.batch = held_out_batches(examples, budget)
        self.characters = characters
        self.judged: list[tuple[str, str]] = []  # of the last evaluation, in the order of `bins`

    def evaluate(
        self,
        training: nn.Module,
        accelerator: Accelerator,
        stop: StopFlag,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[str, Any] | None:
        """Return loss (nats a target), perplexity, bits a character, losses by part, and a task's
        scores.

        None when `stop` was raised meanwhile (asked only where one process decides for itself).
        `progress` is told the batches done and in all.
        """
        training.eval()
        objective = self.examples.objective
        parts: dict[str, list[float]] = {name: [0.0, 0.0] for name in (_WHOLE, *objective.parts)}
        characters = 0.0
        judged: list[tuple[str, str]] = []
        world, rank = accelerator.num_processes, accelerator.process_index
        with torch.no_grad():
            # Every process makes the same number of forward passes: FSDP gathers weights in them.
            for first in range(0, len(self.bins), world):
                if world == 1 and stop.raised:
                    return None
                progress(first, len(self.bins))
                index = first + rank
                batch = self.batch(min(index, len(self.bins) - 1))
                loss, answers = training(to_device(batch, accelerator.device), judge=True)
                if index >= len(self.bins):
                    continue
                for name, (part, targets) in (
                    {_WHOLE: (loss.total, loss.count)} | loss.parts
                ).items():
                    parts[name][0] += float(part)
                    parts[name][1] += targets
                judged += answers
                if objective.predicts_text:
                    labels = batch.fields["labels"]
                    characters += int(self.characters[labels[labels != IGNORE]].sum())
        flat = sums(accelerator, [*(x for pair in parts.values() for x in pair), characters])
        pairs = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(parts)}
        figures = _figures(pairs, flat[-1] if objective.predicts_text else None)
        if world > 1:
            judged = gather_object(judged)
        self.judged = judged
        if judged:
            try:
                figures["metrics"] = scores(objective.metrics, judged)
            except named.WrongScore as error:
                raise UsageError(f"eval.metrics: {error.told}") from error
        return figures


def scores(
    metrics: Sequence[str],
    judged: Sequence[tuple[str, str]],
    warn: Callable[[str], None] = lambda _: None,
) -> dict[str, float | None]:
    """Return the scores of answers against what is right, by the code of `nlpkit score`.

    `metrics` are names, options behind a colon: see `score/named.py`. None where a score is not
    defined, such as a correlation with a constant. `warn` hears the scores' doubts.
    """
    answers, right = [a for a, _ in judged], [b for _, b in judged]
    found: dict[str, float | None] = {}
    for name in metrics:
        try:
            value = named.score(name, answers, right, warn).score
        except DataError:
            value = math.nan
        found[name] = value if math.isfinite(value) else None
    return found


def _figures(parts: dict[str, tuple[float, float]], characters: float | None) -> dict[str, Any]:
    """Return the figures of summed losses; `characters` is None where no text is predicted."""
    total, count = parts.pop(_WHOLE)
    loss = total / count
    figures: dict[str, Any] = {
        "loss": loss,
        "perplexity": None,
        "bits_per_character": None,
        "losses": {name: part / number for name, (part, number) in parts.items() if number},
        "targets": int(count),
    }
    if characters is not None:
        figures["perplexity"] = math.exp(min(loss, 700.0))
        figures["bits_per_character"] = total / math.log(2) / characters if characters else None
    return figures
