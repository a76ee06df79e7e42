"""Held-out loss, perplexity and bits per character; every part of the objective apart."""

import math
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from nlpkit.data.loader import Examples, held_out_batches
from nlpkit.objectives._contract import IGNORE
from nlpkit.train.loop import sums, to_device
from nlpkit.train.signals import StopFlag


class HeldOut:
    """A held-out set whose examples are the same at every evaluation.

    `characters` (V,) says how many characters of text each token stands for.
    """

    def __init__(self, examples: Examples, budget: int, characters: np.ndarray):
        self.examples = examples
        self.bins, self.batch = held_out_batches(examples, budget)
        self.characters = characters

    def evaluate(
        self, training: nn.Module, accelerator: Accelerator, stop: StopFlag
    ) -> dict[str, Any] | None:
        """Return loss (nats a target), perplexity, bits a character, and losses by part.

        None when `stop` was raised meanwhile (asked only where one process decides for itself).
        """
        training.eval()
        names = self.examples.objective.parts
        total = dict.fromkeys(names, 0.0)
        count = dict.fromkeys(names, 0.0)
        characters = 0.0
        world, rank = accelerator.num_processes, accelerator.process_index
        with torch.no_grad():
            # Every process makes the same number of forward passes: FSDP gathers weights in them.
            for first in range(0, len(self.bins), world):
                if world == 1 and stop.raised:
                    return None
                index = first + rank
                batch = self.batch(min(index, len(self.bins) - 1))
                loss = training(to_device(batch, accelerator.device))
                if index >= len(self.bins):
                    continue
                for name, (part, targets) in loss.parts.items():
                    total[name] += float(part)
                    count[name] += targets
                labels = batch.fields["labels"]
                characters += int(self.characters[labels[labels != IGNORE]].sum())
        flat = sums(accelerator, [*total.values(), *count.values(), characters])
        return _figures(dict(zip(names, _pairs(flat, len(names)), strict=True)), flat[-1])


def _pairs(flat: list[float], parts: int) -> list[tuple[float, float]]:
    return [(flat[i], flat[parts + i]) for i in range(parts)]


def _figures(parts: dict[str, tuple[float, float]], characters: float) -> dict[str, Any]:
    total = math.fsum(part for part, _ in parts.values())
    count = math.fsum(number for _, number in parts.values())
    loss = total / count
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_character": total / math.log(2) / characters if characters else None,
        "losses": {name: part / number for name, (part, number) in parts.items() if number},
        "targets": int(count),
    }
