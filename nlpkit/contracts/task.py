"""The contract of tasks: objectives whose examples are rows of a file, not pieces of documents.

S sequences of a batch, T tokens of a text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from nlpkit.contracts.batch import Batch, Loss, Spans
from nlpkit.contracts.objective import ModelSettings, Objective, TrainedModel
from nlpkit.contracts.reader import Row

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.tokenizer import Tokenizer

# The prediction of a row, and its label: one right answer, or several.
Answer = tuple[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Item:
    """A tokenised row: `parts` are ids, `label` is the right answer in the objective's form."""

    parts: tuple[np.ndarray, ...]  # each (T,) int32
    label: Any
    size: int  # tokens of all its sequences
    cut: dict[str, int] = field(default_factory=dict)  # tokens that did not fit, by part
    text: str = ""  # the input, for tasks that generate an answer


def _list_texts(value: object) -> Iterator[str]:
    """Yield the texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(each)


class Task(Objective):
    """The base of every task's `Objective`.

    Its examples are made by `example(item, rng)`; an item may be several sequences, whose lengths
    are then in `LENGTHS` of its example.
    """

    columns: tuple[str, ...] = ()  # the columns of a row that it reads
    has_answers = True
    outputs: int = 0  # the size of the linear layer on a state, or 0
    # The kind of task of that layer, which decides its model in transformers (`layers/head.py`).
    head_kind = "sequence_classification"
    dropout: float = 0.0  # on the input of that layer
    unknown_remark: str = ""  # the source of unknown tokens that are in every row

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.columns = self.named_columns(config)

    @classmethod
    def named_columns(cls, config: Any) -> tuple[str, ...]:
        """Return the columns that `config` names; files without a header have numbered columns."""
        return (config.label,) if "label" in type(config).model_fields else ()

    @classmethod
    def check_columns(cls, config: Any, row: Row) -> None:
        """Raise `RowError` if a row lacks a column that `config` names; values are not checked."""
        for column in cls.named_columns(config):
            if not any(name.startswith(f"{column}:") for name in row.values):  # a name with a colon
                row.find(column)

    @classmethod
    def complete(cls, config: Any, rows: Iterable[Row]) -> Any:
        """Return `config` with the settings that come from the training rows, such as labels."""
        return config

    @classmethod
    def vocabulary_texts(cls, config: Any, row: Row) -> list[str]:
        """Return the texts of a row that train a tokenizer, where files hold rows alone."""
        return [*_list_texts(dict(row.values))]

    @abstractmethod
    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts of a row to be tokenised; raise `RowError` if a value is wrong."""

    @abstractmethod
    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row, cut to fit; `ids` are those of its `texts`.

        Raises:
            LeftOut: nothing to learn is left; it says what is counted, in the plural.
        """

    def augment(self, item: Item, rng: np.random.Generator) -> Item:
        """Return a training row's item, changed at random; held-out rows stay as they are."""
        return item

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[Any]]:
        """Return the loss, and (prediction, label) of each row; no predictions by default."""
        return self.loss(model, hidden, batch), []

    def answers(self, predictions: list[Any], items: Sequence[Item]) -> list[Answer]:
        """Return (prediction, label) of each row, from what `predict` returned for the `items`."""
        return predictions

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return self.tokenizer.encode_batch(texts) if texts else []

    def tokenizer_of(self, part: int) -> Tokenizer:
        """Return the tokenizer of a text of a row, by its number."""
        return self.tokenizer

    def unk_of(self, part: int) -> int | None:
        """Return the id of unknown tokens in a text of a row, by its number, or None."""
        tokenizer = self.tokenizer_of(part)
        return None if tokenizer is None else tokenizer.unk_id

    def unknown(self, item: Item) -> int:
        """Return the number of unknown tokens in an item."""
        return sum(int((part == self.unk_of(n)).sum()) for n, part in enumerate(item.parts))

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

    def wording(self, config: Any) -> Wording:
        """Return how a row is shown."""

    def question(self, config: Any, row: Row) -> Question:
        """Return the answers of a row; raise `RowError` if a value is wrong."""
