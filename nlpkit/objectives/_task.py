"""The base of tasks: objectives whose examples are rows of a file, not pieces of documents.

A task file has a `Config` and an `Objective` derived from `Task`. In addition to the methods of
`contract.Objective` it defines
- `columns`: the columns of a row that it reads;
- `complete(config, rows)`: the config with settings from the training rows, such as labels;
- `texts(row)`: the texts of a row to be tokenised; it checks all values;
- `item(row, ids)`: the tokenised row, with its `size` in tokens and the counts of `cut` tokens;
- `example(item, rng)`: the arrays; sequences are concatenated, `LENGTHS` has their lengths;
- `outputs`: the size of the linear layer on a state, or 0; `head_kind`: its kind of task;
- `special_tokens(model_config)`: tokens that the vocabulary must have;
- `unknown(item)`, `unlearned(item)`: the number of unknown tokens, and of those excluded targets;
- `metrics`: names of the scores (`nlpkit score`) of the task;
- `predict(model, hidden, batch)`: the loss, and (prediction, label) of each row;
- `answers(predictions, items)`: these pairs, if `predict` returns something else for each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from nlpkit.data.pack import LENGTHS
from nlpkit.data.records import RowError, kind_of
from nlpkit.objectives.contract import Loss, ModelSettings, Spans, TrainedModel

if TYPE_CHECKING:
    import torch

    from nlpkit.data.items import Row
    from nlpkit.data.pack import Batch
    from nlpkit.tokenizers.contract import Tokenizer

__all__ = ["LENGTHS", "Answer", "Item", "Question", "RowError", "Task", "kind_of", "shorten"]

# The prediction of a row, and its label: one right answer, or several.
Answer = tuple[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Item:
    """A tokenised row: `parts` are ids, `label` is the right answer in the objective's form."""

    parts: tuple[np.ndarray, ...]  # each (T,) int32
    label: Any
    size: int  # tokens of all its sequences
    cut: dict[str, int] = field(default_factory=dict)
    text: str = ""  # the input, for tasks that generate an answer


@dataclass(frozen=True)
class Wording:
    """How a task's rows are shown as text, unless the recipe's `eval.prompt` says it otherwise.

    In `template`, `{COLUMN}` stands for a value of the row.
    """

    template: str
    answer_prefix: str = " "  # between the prompt and the answer
    separator: str = "\n\n"  # between examples
    neutral: str = ""  # the prompt without the row, for the score `neutral`


@dataclass(frozen=True)
class Question:
    """The answers of a row. `names` are what predictions call them; both empty: to be written."""

    answers: tuple[str, ...]
    names: tuple[str, ...]
    right: str  # the right answer's text
    label: str  # the right answer's name; of a written one, its text


@runtime_checkable
class Prompted(Protocol):
    """The class of a task whose rows can be scored without tuning; it has two more methods."""

    metrics: tuple[str, ...]

    def wording(self, config: Any) -> Wording:
        """Return how a row is shown."""

    def question(self, config: Any, row: Row) -> Question:
        """Return the answers of a row; raise `RowError` if a value is wrong."""

    def named_columns(self, config: Any) -> tuple[str, ...]:
        """See `Task`."""

    def complete(self, config: Any, rows: Iterable[Any]) -> Any:
        """See `Task`."""


class Task(ABC):
    """The base of every task's `Objective`."""

    columns: tuple[str, ...]
    outputs: int = 0
    # The kind of task of that layer, which decides its model in transformers (`models/head.py`).
    head_kind: str = "sequence_classification"
    dropout: float = 0.0  # on the input of that layer
    drop_unknown = False
    joins = False
    mates = 0
    marks: tuple[str, ...] = ()
    reads_text = True
    reads_summary = False  # whether it reads the state that summarizes a sequence
    predicts_text = False  # whether targets are tokens, so that perplexity is defined
    metrics: tuple[str, ...] = ()
    unknown_remark: str = ""  # the source of unknown tokens that are in every row

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config

    @classmethod
    def special_tokens(cls, model_config: ModelSettings) -> tuple[str, ...]:
        """Return the tokens that the vocabulary must have."""
        return ()

    @classmethod
    def named_columns(cls, config: Any) -> tuple[str, ...]:
        """Return the columns that `config` names; files without a header have numbered columns."""
        return (config.label,) if hasattr(config, "label") else ()

    @classmethod
    def check_columns(cls, config: Any, row: Any) -> None:
        """Raise `RowError` if a row lacks a column that `config` names; values are not checked."""
        for column in cls.named_columns(config):
            row.find(column)

    @classmethod
    def complete(cls, config: Any, rows: Iterable[Any]) -> Any:
        """Return `config` with the settings that come from the training rows."""
        return config

    @classmethod
    def vocabulary_texts(cls, config: Any, row: Any) -> list[str]:
        """Return the texts of a row that train a tokenizer, where files hold rows alone."""
        found = []
        for value in row.values.values():
            texts = value if isinstance(value, list) else [value]
            found += texts if all(isinstance(text, str) for text in texts) else []
        return found

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[Any]]:
        """Return the loss, and (prediction, label) of each row; no predictions by default."""
        return self.loss(model, hidden, batch), []

    def answers(self, predictions: list[Any], items: Sequence[Item]) -> list[Answer]:
        """Return (prediction, label) of each row, from what `predict` returned for the `items`."""
        return predictions

    @abstractmethod
    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts of a row to be tokenised; raise `RowError` if a value is wrong."""

    @abstractmethod
    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; `ids` are those of its `texts`."""

    @abstractmethod
    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the loss of a batch."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return self.tokenizer.encode_batch(texts) if texts else []

    @property
    def unk_id(self) -> int | None:
        """The id of unknown tokens, or None."""
        return None if self.tokenizer is None else self.tokenizer.unk_id

    def tokenizer_of(self, part: int) -> Tokenizer:
        """Return the tokenizer of a text of a row, by its number."""
        return self.tokenizer

    def unk_of(self, part: int) -> int | None:
        """Return the id of unknown tokens in a text of a row, by its number, or None."""
        tokenizer = self.tokenizer_of(part)
        return None if tokenizer is None else tokenizer.unk_id

    def unknown(self, item: Item) -> int:
        """Return the number of unknown tokens in an item."""
        return sum(
            int((part == unk_id).sum())
            for number, part in enumerate(item.parts)
            if (unk_id := self.unk_of(number)) is not None
        )

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens that are excluded from the targets of an item."""
        return 0

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return one span for each item, of all its tokens."""
        lengths = np.asarray(lengths, np.int64)
        return Spans(np.arange(len(lengths)), np.zeros(len(lengths), np.int64), lengths, {})

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each item."""
        return pieces


def shorten(ids: Sequence[int], limit: int, keep: str) -> tuple[np.ndarray, int]:
    """Return at most `limit` ids from the start or end (`keep`), and the number of ids cut."""
    limit = max(limit, 0)
    cut = max(len(ids) - limit, 0)
    kept = ids if not cut else (ids[cut:] if keep == "end" else ids[:limit])
    return np.asarray(kept, np.int32), cut


def counted(cut: int, part: str) -> dict[str, int]:
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


def writes_answers(objective: Any) -> bool:
    """Return whether an objective, or its class, is a task whose answers are generated."""
    return hasattr(objective, "texts") and hasattr(objective, "continue_text")
