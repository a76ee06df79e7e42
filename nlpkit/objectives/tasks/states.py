"""Tasks of GPT-1: a linear layer on the last token's state (Radford et al. 2018, sec. 3.2, 3.3).

A sequence is `_start_`, the parts separated by `_delimiter_`, `_classify_`. The loss is
L3 = L2 + λ L1 (eq. 5), where L2 is the task's loss and L1 is in `framed.py`. The files
`classification`, `entailment`, `similarity` and `multiple_choice` define the sequences of a row and
the use of their states.

S sequences, G rows of a batch, N tokens, O outputs of the linear layer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Batch, Field, Loss, Term
from nlpkit.contracts.objective import TrainedModel
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Item, Question, Task, Wording
from nlpkit.data.lines import kind_of
from nlpkit.data.template import as_template, columns
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject
from nlpkit.objectives.tasks.choices import (
    MEANING,
    Choices,
    any_choice,
    name_choices,
    name_few,
    quote,
    read_choice,
)
from nlpkit.objectives.tasks.framed import FramedConfig, FramedTask
from nlpkit.objectives.tasks.rows import count_cut, shorten

if TYPE_CHECKING:
    import torch


class ClassConfig(FrozenConfig):
    """The settings of every task with named classes."""

    label: str = Setting("label", min_length=1, description="column of the class")
    labels: list[str] | None = Setting(
        None,
        min_length=2,
        description="the classes; default: those of choices or of the training rows, sorted",
    )
    choices: Choices | None = Setting(None, description=MEANING)

    @model_validator(mode="after")
    def _choices_are_classes(self) -> Self:
        if self.choices is None or self.labels is None:
            return self
        if others := [name for name in name_choices(self.choices) if name not in self.labels]:
            raise ValueError(f"choices: {others[0]!r} is none of labels, {', '.join(self.labels)}")
        return self


class LabelConfig(ClassConfig, FramedConfig):
    """The settings of every task of texts with named classes."""

    @property
    def texts(self) -> list[str]:
        """Columns and templates of the texts of a row."""
        raise NotImplementedError  # each task's own: a base of pydantic cannot be abstract


class StateTask(FramedTask):
    """A task on the states of `_classify_`; subclasses define `texts`, `sequences` and `label`."""

    reads_summary = True
    fields: Mapping[str, Field] = {
        **FramedTask.fields,
        "label": Field(np.float32, per="sequence"),  # the row's class, option or number
    }

    def sequences(self, ids: list[list[int]]) -> list[list[list[int]]]:
        """Return the sequences of a row as lists of parts; the first part is cut first."""
        return [ids]

    def tail(self, row: Row, ids: list[list[int]]) -> int:
        """Return how many tokens at the end of the first part are kept when its others are cut."""
        return 0

    @abstractmethod
    def label(self, row: Row) -> float:
        """Return the index of the right class or option, or a number; raise `RowError`."""

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the first part is cut first, then the next, at their ends."""
        cut = Counter[str]()
        framed = []
        tail = self.tail(row, ids)
        for parts in self.sequences(ids):
            kept, part_cut = self._fit(parts, tail)
            framed.append(self.frame.ids(kept))
            cut.update(part_cut)
        size = sum(map(len, framed))
        return Item(tuple(framed), self.label(row), size, cut)

    def _fit(
        self, parts: Sequence[list[int]], tail: int
    ) -> tuple[list[np.ndarray], dict[str, int]]:
        left = self.config.max_length - self.frame.size(len(parts))
        kept: list[np.ndarray] = []
        cut: dict[str, int] = {}
        later = sum(map(len, parts))
        for number, part in enumerate(parts, 1):
            later -= len(part)
            last = part[len(part) - tail :] if number == 1 else []
            ids, lost = shorten(part[: len(part) - len(last)], left - later - len(last), "start")
            if last:
                end, end_lost = shorten(last, left - later - len(ids), "start")
                ids, lost = np.concatenate([ids, end]), lost + end_lost
            left -= len(ids)
            kept.append(ids)
            cut |= count_cut(lost, f"part {number} of input")
        return kept, cut

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the concatenated sequences of a row; nothing is random."""
        label = np.full(len(item.parts), item.label, np.float32)
        return self.join(item.parts) | {"label": label}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"task": int((batch["order"] == 0).sum())}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: a summary is made of the first token of its sequence, or the last.

        None: all tokens are read, for the mean of their states or for a language model's loss.
        """
        if self.lm_weight or self.pools:
            return None
        read = batch.fields["input_ids"].new_zeros(sum(batch.lengths)).bool()
        read[np.cumsum(batch.lengths) - 1] = True
        return read

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return L3, summed over rows; `parts` has L2 and L1 without their weights."""
        return self._compute(model, hidden, batch)[0]

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[tuple[str, str]]]:
        loss, outputs, groups = self._compute(model, hidden, batch)
        return loss, self.predictions(outputs, groups, batch.fields)

    def _compute(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, torch.Tensor, torch.Tensor]:
        """Return the loss, the outputs (S, O) of sequences and the indices (S,) of their rows."""
        outputs = model.head(model.summary(hidden, batch.lengths)).float()
        first = batch.fields["order"] == 0
        groups = first.cumsum(0) - 1
        task = self.task_loss(outputs, groups, batch.fields)
        count = int(first.sum())
        parts = {"task": (task.detach(), count)}
        total = task
        if self.lm_weight:
            auxiliary = self.auxiliary(model, hidden, batch, groups)
            parts["lm"] = (auxiliary.detach(), count)
            total = task + self.lm_weight * auxiliary
        return Loss({"task": Term(total, count, parts=parts)}), outputs, groups

    def task_loss(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the task's loss, summed over rows; by default cross entropy of the classes."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, batch["label"].long(), reduction="sum")

    def predictions(
        self, outputs: torch.Tensor, groups: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> list[tuple[str, str]]:
        """Return (most likely class, right class) of each row; rows have one sequence."""
        labels = self.config.labels
        chosen, right = outputs.argmax(1).tolist(), batch["label"].long().tolist()
        return [(labels[a], labels[b]) for a, b in zip(chosen, right, strict=True)]


class ClassTask(Task):
    """A task that predicts one of several named classes, which `ClassConfig` sets."""

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return len(self.config.labels or ())

    @classmethod
    def complete(cls, config: Any, rows: Iterable[Row]) -> Any:
        """Return `config` with `labels`, the classes of the training rows, unless it lists classes.

        Wrong rows are left to the reading of texts, which stops or counts them (`data.on_error`).

        Raises:
            DataError: there are fewer than two classes, perhaps because of the first wrong row; or
                some are text that is no number, and some are numbers.
        """
        if config.labels is not None:
            return config
        if config.choices is not None:
            return config.model_copy(update={"labels": name_choices(config.choices)})
        classes, wrong = set(), ""
        first: dict[bool, str] = {}  # the first class that is a number, and that can be none
        for row in rows:
            try:
                classes.add(name := read_class_name(row, config.label))
            except RowError as error:
                wrong = wrong or f"{row.file}:{row.line}: {error.what}"
                continue
            value, place = row.value(config.label), f"{row.file}:{row.line}"
            # "1" is that of a table, which has text alone.
            if (is_number := isinstance(value, int)) or not _is_decimal(name):
                first.setdefault(is_number, f"{place} {name if is_number else quote(name)}")
            if len(first) == 2:
                raise DataError(
                    f'{place}: "{config.label}" is {name if is_number else quote(name)}, and in '
                    f"{first[not is_number]}: some classes are text, some numbers; if they are "
                    "meant, list them in objective.labels"
                )
        numbers = all(map(_is_decimal, classes))
        # 1 and 01 are the same number, and a set has no order of its own.
        names = sorted(sorted(classes), key=int) if numbers else sorted(classes)
        if len(names) < 2:
            same = f'all rows have the same "{config.label}", {", ".join(map(quote, names))}'
            raise DataError(wrong or f"data.train: {same if names else 'no rows'}")
        return config.model_copy(update={"labels": names})

    def stand_in(self, row: Row) -> JsonObject:
        """See `AnswersUnlabelled`."""
        labels, choices = self.config.labels, self.config.choices
        return {self.config.label: labels[0] if choices is None else any_choice(choices)}


class LabelTask(ClassTask, StateTask):
    """A task that predicts the class of texts."""

    metrics: tuple[str, ...] = ("accuracy", "f1")

    @classmethod
    def wording(cls, config: Any) -> Wording:
        """Return the texts, and a line for the class."""
        return Wording(f"{as_template(config.texts)}\nLabel:", neutral="Label:")

    @classmethod
    def named_columns(cls, config: LabelConfig) -> tuple[str, ...]:
        return columns(*config.texts, config.label)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts; raise `RowError`."""
        self.label(row)
        return tuple(row.text(text) for text in self.config.texts)

    @classmethod
    def question(cls, config: Any, row: Row) -> Question:
        """Return the classes as answers; raise `RowError`."""
        name = read_class(row, config)
        return Question(tuple(config.labels), tuple(config.labels), name, name)

    def label(self, row: Row) -> float:
        return self.config.labels.index(read_class(row, self.config))


def _is_decimal(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def read_class(row: Row, config: Any) -> str:
    """Return the row's class; raise `RowError` if it is none of `config.labels`."""
    if config.choices is not None:
        return read_choice(row, config.label, config.choices)
    name = read_class_name(row, config.label)
    if name not in config.labels:
        known = name_few(config.labels)
        raise RowError(f'"{config.label}" is {quote(name)}, none of the classes {known}')
    return name


def read_class_name(row: Row, column: str) -> str:
    """Return the class in a column, a string or an integer; raise `RowError`."""
    value = row.value(column)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        what = "empty" if value == "" else kind_of(value)
        can = isinstance(value, (bool, float))
        how = "; objective.choices can say what it stands for" if can else ""
        raise RowError(f'"{column}" is {what}, not a string or an integer{how}')
    return str(value)
