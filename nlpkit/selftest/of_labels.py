"""The proof of heads with other targets than tokens: next text, order, replaced tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from nlpkit.selftest.of_objective import LEARNED, Verdict, draw_noise, train_fresh
from nlpkit.selftest.subject import Example, Subject
from nlpkit.selftest.watching import Head


@dataclass
class _Batch:
    """The sum of a head's losses on one batch, and its labels."""

    total: float
    labels: torch.Tensor  # (M,)


def label_leak(subject: Subject) -> Verdict:
    """Train with all words replaced by random ones: the labels must be unpredictable.

    The words are replaced in finished examples, so that only special tokens, token types, positions
    and lengths remain. The loss must decrease to the entropy of the labels, not below.
    """
    rng = subject.rng(16)
    by_head: dict[str, list[_Batch]] = {}
    for made, seen in train_fresh(subject, _draw_blind(subject, rng)):
        words = subject.text_in(np.concatenate([example["input_ids"] for example in made]))
        for name, head in seen.given_labels.items():
            by_head.setdefault(name, []).append(_keep_words(head, torch.from_numpy(words)))
    figures, passed = [], True
    for name, batches in by_head.items():
        mean, error, floor = _compare_with_entropy(batches)
        figure = f"{name}: loss {mean:.4f}, {floor:.4f} ± {error:.4f} without a leak"
        if mean < floor - 3 * error:
            passed, figure = (
                False,
                f"{figure}, so the label depends on something other than the text",
            )
        elif not mean <= floor + LEARNED:  # so that NaN fails
            passed, figure = False, f"{figure}: learned too little for a leak to show"
        figures.append(figure)
    return passed, "; ".join(figures)


def _draw_blind(subject: Subject, rng: np.random.Generator) -> Iterator[list[Example]]:
    for made in draw_noise(subject, rng):
        for example in made:
            ids = example["input_ids"]
            drawn = rng.choice(subject.words, len(ids))
            example["input_ids"] = np.where(subject.text_in(ids), drawn, ids)
        yield made


def _keep_words(head: Head, is_text: torch.Tensor) -> _Batch:
    """Return a head's losses and labels without special tokens, which are always original."""
    if head.per == "token":
        head = head.taken(is_text.to(head.index.device)[head.index].nonzero().squeeze(1))
    return _Batch(float(head.each.double().sum()), head.targets.cpu().long())


def _compare_with_entropy(batches: list[_Batch]) -> tuple[float, float, float]:
    """Return the mean loss, the standard error of its excess over the entropy, and the entropy.

    The loss of each batch is compared with that of the labels' frequencies on the same batch.
    """
    labels = torch.cat([batch.labels for batch in batches])
    frequency = torch.bincount(labels).double() / len(labels)
    surprise = -frequency.log()
    count = len(labels) / len(batches)
    excess = [(b.total - float(surprise[b.labels].sum())) / count for b in batches]
    floor = float(surprise[labels].mean())
    mean = sum(batch.total for batch in batches) / len(labels)
    return mean, float(np.std(excess, ddof=1)) / math.sqrt(len(excess)), floor
