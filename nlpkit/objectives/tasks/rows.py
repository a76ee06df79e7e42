"""What tasks share: texts that are too long, groups of scores, predictions.

S sequences of a batch, G groups of them, such as the choices of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Item, Question, Task
from nlpkit.objectives.examples.text import LabelTargets
from nlpkit.objectives.tasks.choices import read_target

if TYPE_CHECKING:
    import torch


class WrittenTarget(LabelTargets, Task):
    """A task in which a target is written behind a text; an item's parts are both."""

    eos_token_ids: tuple[int, ...]

    @classmethod
    def question(cls, config: Any, row: Row) -> Question:
        """Return the target, which is to be written; raise `RowError`."""
        target = read_target(row, config.target, config.choices)
        return Question((), (), target, target)

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are never generated, even if targets contain `<unk>`."""
        ids = (self.tokenizer.bos_id, self.tokenizer.pad_id, self.tokenizer.unk_id)
        return tuple(i for i in ids if i is not None and i not in self.eos_token_ids)

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens in the target, unless they are learned."""
        count = int((item.parts[1] == self.tokenizer.unk_id).sum())
        return 0 if self.config.learn_unknown else count


def shorten(ids: Sequence[int], limit: int, keep: str) -> tuple[np.ndarray, int]:
    """Return at most `limit` ids from the start or end (`keep`), and the number of ids cut."""
    limit = max(limit, 0)
    cut = max(len(ids) - limit, 0)
    kept = ids if not cut else (ids[cut:] if keep == "end" else ids[:limit])
    return np.asarray(kept, np.int32), cut


def fit(texts: Sequence[Sequence[int]], room: int) -> tuple[list[np.ndarray], list[int]]:
    """Return the ids of texts with `room` tokens in all, and the number of ids cut of each.

    The first text loses its start, then the second one, and so on; the last one loses its end.
    """
    parts, cuts = [], []
    excess = sum(map(len, texts)) - room
    for after, text in zip(reversed(range(len(texts))), texts, strict=True):
        part, cut = shorten(text, len(text) - max(excess, 0), "end" if after else "start")
        parts.append(part)
        cuts.append(cut)
        excess -= cut
    return parts, cuts


def count_cut(cut: int, part: str) -> dict[str, int]:
    """Return the `cut` counts of an item with `cut` tokens removed from a part."""
    return {f"{part}s cut": 1, f"tokens cut from {part}s": cut} if cut else {}


def numbers(options: Sequence[str]) -> tuple[str, ...]:
    """Return what predictions call the options: their indices, from 0."""
    return tuple(map(str, range(len(options))))


def last_tokens(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the index (S,) of the last token of each sequence of a pack."""
    import torch

    return torch.tensor(lengths, device=device).cumsum(0) - 1


def group_softmax_loss(
    scores: torch.Tensor, groups: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """Return (G,) cross entropy of groups of scores: -log softmax over each group's own scores.

    `scores` (S,) float, `groups` (S,) int64 from 0, ascending, `right` (G,) index into `scores`.
    """
    import torch

    count = len(right)
    scores = scores.float()
    highest = torch.full((count,), -torch.inf, device=scores.device)
    highest = highest.scatter_reduce(0, groups, scores.detach(), "amax")
    total = torch.zeros(count, device=scores.device)
    total = total.index_add(0, groups, (scores - highest[groups]).exp())
    return total.log() + highest - scores[right]


def predictions(
    scores: torch.Tensor, groups: torch.Tensor, right: torch.Tensor
) -> list[tuple[str, str]]:
    """Return for each group the index of its highest score and its value of `right`, as text."""
    by_group: dict[int, tuple[list[float], int]] = {}
    for group, score, label in zip(groups.tolist(), scores.tolist(), right.tolist(), strict=True):
        by_group.setdefault(group, ([], label))[0].append(score)
    return [(str(row.index(max(row))), str(label)) for row, label in by_group.values()]
