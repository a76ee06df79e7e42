"""What tasks share: objectives whose examples are rows of a file, not pieces of documents.

A task file has a `Config` and an `Objective` derived from `Task`. Beside the contract of
`contract.Objective` it says
- `columns`: the columns of a row that it reads;
- `complete(config, rows) -> config`: fills in what only the training rows tell, such as labels;
- `texts(row)`: the texts of a row that are to be tokenised, every value checked;
- `item(row, ids) -> item`: what is kept of a row: its `size` in tokens and what was `cut`;
- `example(item, rng)`: its arrays, as everywhere; several sequences are one after another, and
  `LENGTHS` says how long each is;
- `outputs`: the size of the linear layer that it puts on a state, or 0;
- `special_tokens(model_config)`: tokens that the vocabulary must have;
- `unknown(item)`, `unlearned(item)`: its unknown tokens, and those in targets that are not learned;
- `metrics`: the scores by which it is judged, names of `nlpkit score`;
- `predict(model, hidden, batch)`: the loss, and for each row the prediction and its label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nlpkit.data.pack import LENGTHS
from nlpkit.data.records import RowError, kind_of
from nlpkit.objectives.contract import Loss, ModelSettings, Spans, TrainedModel

if TYPE_CHECKING:
    import torch

    from nlpkit.data.items import Row
    from nlpkit.data.pack import Batch
    from nlpkit.tokenizers.contract import Tokenizer

__all__ = ["LENGTHS", "Item", "RowError", "Task", "kind_of", "shorten"]


@dataclass(frozen=True)
class Item:
    """A row, tokenised: `parts` are ids, `label` is what the objective made of the right answer."""

    parts: tuple[np.ndarray, ...]  # each (T,) int32
    label: Any
    size: int  # tokens of all its sequences
    cut: dict[str, int] = field(default_factory=dict)
    text: str = ""  # what is given, where an answer is to be written


class Task(ABC):
    """The common part of every task's `Objective`."""

    columns: tuple[str, ...]
    outputs: int = 0
    dropout: float = 0.0  # before that layer
    drop_unknown = False
    joins = False
    mates = 0
    marks: tuple[str, ...] = ()
    reads_text = True
    predicts_text = False  # whether a target is a token, so that perplexity means something
    metrics: tuple[str, ...] = ()
    unknown_remark: str = ""  # where unknown tokens are that come with every row

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return ()

    @classmethod
    def named_columns(cls, config: Any) -> tuple[str, ...]:
        """Return the columns that `config` names: numbers where the files have no header."""
        return (config.label,) if hasattr(config, "label") else ()

    @classmethod
    def complete(cls, config: Any, rows: Iterable[Any]) -> Any:
        """Return `config` with what the training rows alone can tell."""
        return config

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[tuple[str, str]]]:
        """Return the loss, and for each row the prediction and its label; none by default."""
        return self.loss(model, hidden, batch), []

    @abstractmethod
    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts of a row that are tokenised, every value checked; raise `RowError`."""

    @abstractmethod
    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return what is kept of a row, whose texts have these ids."""

    @abstractmethod
    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of a batch."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return self.tokenizer.encode_batch(texts) if texts else []

    @property
    def unk_id(self) -> int | None:
        """The id of unknown tokens, if there is one."""
        return None if self.tokenizer is None else self.tokenizer.unk_id

    def unknown(self, item: Item) -> int:
        """Return the number of unknown tokens in an item."""
        if self.unk_id is None:
            return 0
        return sum(int((part == self.unk_id).sum()) for part in item.parts)

    def unlearned(self, item: Item) -> int:
        """Return how many unknown tokens of an item would be targets, but are not learned."""
        return 0

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return every item whole."""
        lengths = np.asarray(lengths, np.int64)
        return Spans(np.arange(len(lengths)), np.zeros(len(lengths), np.int64), lengths, {})

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of each item."""
        return pieces


def shorten(ids: Sequence[int], limit: int, keep: str) -> tuple[np.ndarray, int]:
    """Return at most `limit` ids, those at the `keep` (start or end), and how many were cut."""
    limit = max(limit, 0)
    cut = max(len(ids) - limit, 0)
    kept = ids if not cut else (ids[cut:] if keep == "end" else ids[:limit])
    return np.asarray(kept, np.int32), cut


def counted(cut: int, part: str) -> dict[str, int]:
    """Return what an item says about so many tokens cut from one of its parts."""
    return {f"{part}s cut": 1, f"tokens cut from {part}s": cut} if cut else {}


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
    """Return for each group the number of its highest score and `right`'s, as text."""
    found: dict[int, tuple[list[float], int]] = {}
    for group, score, wanted in zip(groups.tolist(), scores.tolist(), right.tolist(), strict=True):
        found.setdefault(group, ([], wanted))[0].append(score)
    return [(str(row.index(max(row))), str(wanted)) for row, wanted in found.values()]
