"""The proof of heads that predict no tokens: whether pairs follow, an order, what was replaced."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from nlpkit.data.pack import Batch
from nlpkit.selftest.of_objective import LEARNED, NOISE_EXAMPLES, NOISE_PIECE, Verdict, trained
from nlpkit.selftest.subject import Example, Subject
from nlpkit.selftest.watching import Head


@dataclass
class _Batch:
    """What a head did on one batch: losses in the sum, and the counts of its labels."""

    total: float
    labels: torch.Tensor  # (M,)


def label_leak(subject: Subject) -> Verdict:
    """Train with all words replaced by random ones: nothing that is left may tell the labels.

    The words are drawn anew when the examples are finished. What is left are special tokens, token
    types, positions, lengths. The loss must come down to the entropy of the labels, not below.
    """
    rng = subject.rng(16)
    found: dict[str, list[_Batch]] = {}
    for made, seen in trained(subject, _blind(subject, rng)):
        words = subject.text_in(np.concatenate([example["input_ids"] for example in made]))
        for name, head in seen.given_labels.items():
            found.setdefault(name, []).append(_kept(head, torch.from_numpy(words)))
    figures, passed = [], True
    for name, batches in found.items():
        mean, error, floor = _against_entropy(batches)
        figure = f"{name}: loss {mean:.4f}, {floor:.4f} ± {error:.4f} if nothing tells the label"
        if mean < floor - 3 * error:
            passed, figure = False, f"{figure}, so something else than the text tells it"
        elif not mean <= floor + LEARNED:  # so that NaN fails
            passed, figure = False, f"{figure}: learned too little for a leak to show"
        figures.append(figure)
    return passed, "; ".join(figures)


def _blind(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[list[Example], Batch]]:
    size = subject.noise_size(NOISE_PIECE)
    while True:
        sources = [subject.noise(size, rng) for _ in range(NOISE_EXAMPLES)]
        made = [subject.example(source, rng) for source in sources]
        for example in made:
            ids = example["input_ids"]
            drawn = rng.choice(subject.words, len(ids))
            example["input_ids"] = np.where(subject.text_in(ids), drawn, ids)
        yield made, subject.pack(made)


def _kept(head: Head, is_text: torch.Tensor) -> _Batch:
    """Return what a head did, without the special tokens: anyone knows that they are original."""
    if head.per == "token":
        head = head.taken(is_text.to(head.index.device)[head.index].nonzero().squeeze(1))
    return _Batch(float(head.each.double().sum()), head.targets.cpu().long())


def _against_entropy(batches: list[_Batch]) -> tuple[float, float, float]:
    """Return the mean loss, the error of its difference to the labels' entropy, and the entropy.

    Each batch's loss is compared with what the labels' own frequencies give on the same batch.
    """
    labels = torch.cat([batch.labels for batch in batches])
    frequency = torch.bincount(labels).double() / len(labels)
    surprise = -frequency.log()
    count = len(labels) / len(batches)
    apart = [(b.total - float(surprise[b.labels].sum())) / count for b in batches]
    floor = float(surprise[labels].mean())
    mean = sum(batch.total for batch in batches) / len(labels)
    return mean, float(np.std(apart, ddof=1)) / math.sqrt(len(apart)), floor
