"""Held-out loss, perplexity, bits per character, the loss of each part, and the task's scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from nlpkit.contracts.batch import Loss
from nlpkit.contracts.task import Answer, Item, Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.corpus import Corpus
from nlpkit.data.items import TaskDataset
from nlpkit.data.loader import Examples, held_out_batches
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.train.losses import LossSums, reduced
from nlpkit.train.machine import to_device
from nlpkit.train.signals import StopFlag

_BY_HEART = (
    "the model learns its training data by heart. More data, model.dropout or train.weight_decay "
    "help; train.patience stops such a run"
)


class HeldOut:
    """A held-out set whose examples are the same at every evaluation.

    `characters` (V,) is the number of characters of its text that a token stands for.
    """

    def __init__(self, examples: Examples, budget: int, tokenizer: Tokenizer | None):
        self.examples = examples
        self.bins, self.batch = held_out_batches(examples, budget)
        self.characters = np.zeros(0) if tokenizer is None else tokenizer.token_characters()
        if tokenizer is not None and not tokenizer.keeps_text:
            self.characters = share_out(self.characters, examples.corpus, tokenizer.unk_id)
        # (prediction, label) of the last evaluation, in the order of `bins`.
        self.predictions: list[Answer] = []

    def evaluate(
        self,
        training: nn.Module,
        accelerator: Accelerator,
        stop: StopFlag,
        progress: Callable[[int, int], None] = lambda done, total: None,
        progress_of_run: float = 1.0,
    ) -> JsonObject | None:
        """Return loss (nats per target), perplexity, bits per character, loss by part, and scores.

        With a single process, None is returned if `stop` is raised during the evaluation.

        Args:
            progress: called with the numbers of finished batches and of all batches.
            progress_of_run: the share of the run that is done, for losses that depend on it.
        """
        training.eval()
        objective = self.examples.objective
        sums = LossSums()
        characters = 0.0
        pairs: list[Answer] = []
        world, rank = accelerator.num_processes, accelerator.process_index
        with torch.no_grad():
            # All processes make the same number of forward passes: FSDP gathers weights in them.
            for first in range(0, len(self.bins), world):
                if world == 1 and stop.raised:
                    return None
                progress(first, len(self.bins))
                index = first + rank
                batch = self.batch(min(index, len(self.bins) - 1))
                batch.progress = progress_of_run
                loss, predicted = training(to_device(batch, accelerator.device), predict=True)
                sums.add(loss, counted=index < len(self.bins))
                if index >= len(self.bins):
                    continue
                if predicted:
                    pairs += self._answers(index, predicted)
                if objective.predicts_text:
                    characters += self._characters_of(loss, batch.fields["labels"])
            own = training(None) if objective.scores else {}
            if world == 1 and objective.scores and stop.raised:  # then `own` may lack some
                return None
        sums.reduce(accelerator)
        (characters,) = reduced(accelerator, [characters])
        figures = _figures(sums, characters if objective.predicts_text else None)
        self.predictions = gather_object(pairs) if world > 1 else pairs
        if scores := self._score(figures["losses"]) | own:
            figures["metrics"] = scores
        return figures

    def _score(self, losses: dict[str, float | None]) -> dict[str, float | None]:
        """Return the scores among the losses, which are taken out, and those of the answers."""
        objective = self.examples.objective
        scores = {name: losses.pop(name, None) for name in objective.scores}
        if self.predictions:
            from nlpkit.train.scores import metrics_of_run

            scores |= metrics_of_run(cast(Task, objective).metrics, self.predictions)
        return scores

    def _answers(self, index: int, predicted: list[Any]) -> list[Answer]:
        items = [self.examples.source(piece) for piece in self.bins[index].tolist()]
        return cast(Task, self.examples.objective).answers(predicted, cast("list[Item]", items))

    def _characters_of(self, loss: Loss, labels: np.ndarray) -> float:
        """Return the characters of the targets that are tokens; NaN if these are not known."""
        targets = loss.targets_of_text(torch.from_numpy(labels)).cpu()
        if len(targets) != sum(term.num_targets for term in loss.terms.values() if term.is_text):
            return math.nan
        return float(self.characters[targets].sum())


def share_out(held: np.ndarray, corpus: Corpus | TaskDataset, unknown: int | None) -> np.ndarray:
    """Return the characters (V,) of tokens that hold `held` (V,): together those of the corpus.

    What they lose, such as spaces, is shared out among them by what they hold: by that alone,
    WordPiece has 23 % more bits per character. The token `unknown`, of which nobody knows what it
    holds, has the mean of all; where it was left out of the text, it was a character. Rows of a
    task are no running text: they have `held`.
    """
    if not isinstance(corpus, Corpus):
        return held
    times = corpus.histogram()
    kept = 0 if unknown is None else int(times[unknown : unknown + 1].sum())
    total = int(times @ held[: len(times)]) - kept  # an unknown token counts as one character
    text = corpus.counts.characters - (corpus.counts.unknown - kept)
    return held * (text * (1 - kept / corpus.tokens) / total) if total > 0 else held


def _figures(sums: LossSums, characters: float | None) -> JsonObject:
    """Return the figures of summed losses; `characters` is None if no text is predicted.

    `targets` are those of the perplexity, or of the first term if there is none.
    """
    figures: JsonObject = {
        "loss": sums.mean,
        "perplexity": None,
        "bits_per_character": None,
        "losses": {name: mean for name, mean in sums.means.items() if mean is not None},
        "targets": sums.num_targets,
    }
    total, number = sums.text
    if characters is not None and number:
        figures["targets"] = int(number)  # of the terms whose perplexity this is
        figures["perplexity"] = math.exp(min(total / number, 700.0))
        figures["bits_per_character"] = total / math.log(2) / characters if characters > 0 else None
    return figures


def in_words(figures: JsonMapping) -> str:
    """Return the figures of an evaluation on one line, for people."""
    parts = "  ".join(f"{name} {value:.4f}" for name, value in figures["losses"].items())
    line = f"loss {figures['loss']:.4f} ({parts or 'no targets'})"
    if figures["perplexity"] is not None:
        line += f"  perplexity {figures['perplexity']:.2f}"
    for name, value in figures.get("metrics", {}).items():
        line += f"  {name} {'undefined' if value is None else format(value, '.4f')}"
    if figures["bits_per_character"] is not None:
        line += f"  bits/character {figures['bits_per_character']:.3f}"
    return line


@dataclass
class Overfitting:
    """Notices that the held-out loss rises while the training loss falls, since the run started."""

    losses: list[float] = field(default_factory=list)  # of the steps since the last evaluation
    best: tuple[int, float, float] | None = None  # step, training loss before it, held-out loss
    worse: int = 0  # evaluations since the best one
    falls: bool = True  # whether the training loss was lower in all of these
    is_known: bool = False

    def warning(self, step: int, held_out: float) -> str | None:
        """Add an evaluation; return a warning, once, if two in a row are worse than the best one.

        The training loss must have fallen since then.
        """
        if not self.losses:
            return None
        training = fmean(self.losses)
        self.losses.clear()
        if self.best is None or held_out < self.best[2]:
            self.best, self.worse, self.falls = (step, training, held_out), 0, True
            return None
        since, before, lowest = self.best
        self.worse, self.falls = self.worse + 1, self.falls and training < before
        if self.is_known or self.worse < 2 or not self.falls:
            return None
        self.is_known = True
        fell = f"the training loss fell from {before:.4f} to {training:.4f}"
        risen = f"from {lowest:.4f} to {held_out:.4f}"
        return f"the held-out loss has risen since step {since}, {risen}, while {fell}: {_BY_HEART}"
