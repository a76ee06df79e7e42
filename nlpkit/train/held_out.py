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
from nlpkit.train.loop import to_device
from nlpkit.train.losses import LossSums, reduced
from nlpkit.train.signals import StopFlag


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
        progress_of_run: float = 1.0,
    ) -> dict[str, Any] | None:
        """Return loss (nats a target), perplexity, bits a character, losses by part, and a task's
        scores.

        None when `stop` was raised meanwhile (asked only where one process decides for itself).
        `progress` is told the batches done and in all; `progress_of_run` is for losses that follow
        it.
        """
        training.eval()
        objective = self.examples.objective
        sums = LossSums()
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
                batch.progress = progress_of_run
                loss, answers = training(to_device(batch, accelerator.device), predict=True)
                if index >= len(self.bins):
                    continue
                sums.add(loss)
                judged += answers
                if objective.predicts_text:
                    labels = batch.fields["labels"]
                    characters += int(self.characters[labels[labels != IGNORE]].sum())
        sums.reduce(accelerator)
        (characters,) = reduced(accelerator, [characters])
        figures = _figures(sums, characters if objective.predicts_text else None)
        if world > 1:
            judged = gather_object(judged)
        self.judged = judged
        if judged:
            try:
                figures["metrics"] = scores(objective.metrics, judged)
            except named.WrongScore as error:
                raise UsageError(f"eval.metrics: {error.message}") from error
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


def _figures(sums: LossSums, characters: float | None) -> dict[str, Any]:
    """Return the figures of summed losses; `characters` is None where no text is predicted."""
    figures: dict[str, Any] = {
        "loss": sums.mean,
        "perplexity": None,
        "bits_per_character": None,
        "losses": {name: mean for name, mean in sums.means.items() if mean is not None},
        "targets": sums.num_targets,
    }
    total, number = sums.text
    if characters is not None and number:
        figures["perplexity"] = math.exp(min(total / number, 700.0))
        figures["bits_per_character"] = total / math.log(2) / characters if characters else None
    return figures
