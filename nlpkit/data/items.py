"""Rows of task data -> items, read and tokenised once, in memory; `readers/` has the formats.

A row is a mapping of column names to values. The objective (`contracts/task.py`) decides which
columns are read and what an item holds. An item has its size in tokens, so items are packed like
documents. What is cut is counted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from nlpkit.contracts.reader import Bad, Counts, LeftOut, RowError, TextFile
from nlpkit.contracts.task import Item, Task
from nlpkit.data import formats, nested, template
from nlpkit.data.cache import Callbacks, content_hash
from nlpkit.data.documents import is_held_out
from nlpkit.data.files import Input
from nlpkit.data.lines import check_characters, name_first
from nlpkit.data.settings import Config, Part
from nlpkit.data.store import WARN_SHARE
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of

_AT_ONCE = 1000  # rows tokenised together
_COLUMNAR = ("arrow", "parquet")  # read whole: tasks read columns that they do not name, too


@dataclass(frozen=True)
class Row:
    """One row of a file; `line` counts from 1, after decompression."""

    values: JsonObject
    file: str
    line: int

    def text(self, column: str) -> str:
        """Return the text in a column, at a path or of a template (`data/template.py`).

        Raises:
            RowError: it is missing, or something else.
        """
        if not template.is_template(column):
            self.value(column)
        return template.text_at(self.values, column)

    def find(self, column: str) -> object:
        """Return the value in a column or at a path, unchecked; raise `RowError` if none is."""
        return template.value_at(self.values, column)

    def value(self, column: str) -> object:
        """Return the value in a column or at a path; raise `RowError` if there is no valid one."""
        value = self.find(column)
        _check_text(f'"{column}"', value)
        return value


def _check_text(name: str, value: object) -> None:
    """Raise `RowError` for a character that no text has, also in a list or a dict of texts."""
    if isinstance(value, list):
        for number, entry in enumerate(value):
            _check_text(f"{name}[{number}]", entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check_text(f"{name}.{key}", entry)
    elif isinstance(value, str):
        check_characters(value, name)


class TaskDataset:
    """Items of several sources with weights, numbered through; see `corpus.Corpus`.

    `cut` counts the tokens that did not fit, and the items they were cut from, by part.
    """

    NOUN = "rows"
    remark = ""

    def __init__(
        self,
        sources: Sequence[tuple[Sequence[Item], float]],
        counts: Counts,
        cut: Counter[str],
        fingerprint: str,
    ):
        self.items = [item for items, _ in sources for item in items]
        self.lengths = np.array([item.size for item in self.items], np.int64)
        self.weights = np.array([weight for _, weight in sources], np.float64)
        self.starts = np.cumsum([0, *(len(items) for items, _ in sources)], dtype=np.int64)
        self.counts, self.cut, self.fingerprint = counts, cut, fingerprint
        self.tokens = int(self.lengths.sum())

    def __len__(self) -> int:
        return len(self.items)

    def unigram_entropy(self, without: int | None = None) -> None:
        """Return None: items are no running text."""


def read_rows(
    inputs: Sequence[Input],
    config: Config,
    columns: Sequence[str],
    counts: Counts,
    part: Part = "all",
    callbacks: Callbacks = Callbacks(),
) -> Iterator[Row]:
    """Yield the rows of all files in order.

    The task checks that a row has the `columns`. If all of them are numbers, they are those of a
    tsv or csv file without a header, counted from 1.

    Raises:
        DataError: `file:line: what` is malformed (counted instead where `on_error` is skip).
    """
    if columns and part != "all" and config.valid_group is not None:
        columns = (*columns, config.valid_group)
    for file in (file for entry in inputs for file in entry.files):
        if file.format in formats.TEXT_FORMATS:
            raise UsageError(
                f"{file.name}: a task needs rows ({', '.join(formats.readers())}), and this file "
                f"is read as {file.format}; if it has rows, rename it, or set data.format"
            )
        callbacks.should_stop()
        found = 0
        chosen = () if file.format in _COLUMNAR else columns
        read = formats.reader(file.format).rows(file, chosen, counts)
        rows = nested.expand_rows(read, config.rows, config.history)
        line_break = config.line_break if file.format in formats.WITH_LINE_BREAK else None
        for line, values in islice(rows, file.max_rows):
            if line % 256 == 0:
                callbacks.should_stop()
            try:
                if isinstance(values, RowError):
                    raise values
                found, row = found + 1, Row(values, file.name, line)
                is_other = part != "all" and _is_held_out(row, config) != (part == "valid")
            except RowError as error:
                _count_bad(error, file.name, line, config, counts)
                continue
            if is_other:
                counts.held_out += 1
            elif line_break is None:
                yield row
            else:
                texts = {name: text.replace(line_break, "\n") for name, text in values.items()}
                yield Row(texts, file.name, line)
        if not found and config.on_error == "stop":
            raise DataError(f"{file.name}: {'no rows' if counts.lines else 'empty file'}")


def read_texts(
    rows: Iterable[Row],
    texts_of: Callable[[Row], Iterable[str]],
    config: Config,
    counts: Counts,
) -> Iterator[str]:
    """Yield the texts of rows that train a tokenizer; wrong rows are counted.

    Raises:
        DataError: a row is wrong, and `config.on_error` is `stop`.
    """
    for row in rows:
        try:
            yield from texts_of(row)
        except RowError as error:
            _count_bad(error, row.file, row.line, config, counts)


def _count_bad(error: RowError, file: str, line: int, config: Config, counts: Counts) -> None:
    if config.on_error == "stop":
        raise DataError(f"{file}:{line}: {error.what}") from error
    counts.add_bad(Bad(file, line, error.what))


def _is_held_out(row: Row, config: Config) -> bool:
    values = row.values if config.valid_group is None else row.find(config.valid_group)
    if config.valid_group is not None and isinstance(values, list):
        values = sorted(values, key=str)  # the same choices in another order are no new ones
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=_plain)
    return is_held_out(text.encode("utf-8", "replace"), config.valid_fraction)


def _plain(value: object) -> object:
    """Return a value as JSON, the same only for equal values, such as arrays and dates."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, value.tobytes().hex()]
    return [type(value).__name__, repr(value)]


def build_items(
    inputs: Sequence[Input],
    config: Config,
    objective: Task,
    *,
    part: Part = "all",
    callbacks: Callbacks = Callbacks(),
    change: Callable[[Row], Row] | None = None,
) -> TaskDataset:
    """Return all rows of a mixture as the task's items; unknown tokens are counted and said.

    `change` is applied to each row before the task reads it.

    Raises:
        DataError: a malformed row (`file:line: what`), or no item at all.
    """
    counts, cut = Counts(), Counter[str]()
    sources = []
    empty: list[Row] = []
    for entry in inputs:
        read = read_rows([entry], config, objective.columns, counts, part, callbacks)
        rows = map(change, read) if change else read
        sources.append((list(_items(rows, config, objective, counts, cut, empty)), entry.weight))
    files = [file for entry in inputs for file in entry.files]
    hashes = [[content_hash(file, callbacks.should_stop), file.format] for file in files]
    weights = [entry.weight for entry in inputs]
    key: list[object] = [hashes, weights, part, config.valid_fraction, objective.columns]
    items = TaskDataset(sources, counts, cut, _hash_key(key, config, files))
    if objective.predicts_text and not objective.tokenizer.keeps_text:
        items.remark = "; bits/character are approximate: tokens have other spaces than the text"
    names = name_first([each.name for file in files for each in file.parts])
    if not len(items):
        raise DataError(
            f"{names}: no items; {number_of(counts.bad, 'malformed rows')}, "
            f"{number_of(counts.blank, 'blank lines')}, "
            + (f"{number_of(counts.left_out, 'rows left out')}, " if counts.left_out else "")
            + "".join(f"{number_of(n, what)}; " for what, n in cut.items())
            + f"{number_of(counts.held_out, 'rows')} in the other part"
        )
    said = f", {counts.unknown:,} of them unknown" if counts.unknown else ""
    callbacks.note(
        f"data: {names}: {number_of(len(items), 'rows')}, {number_of(items.tokens, 'tokens')}{said}"
    )
    if counts.unknown and counts.unknown >= WARN_SHARE * items.tokens:
        from nlpkit.data import remarks

        remark = objective.unknown_remark
        callbacks.warn(remarks.warn_of_unknown(inputs, counts.unknown, items.tokens, remark))
    if empty:
        callbacks.warn(
            f"{empty[0].file}:{empty[0].line}: a text of unknown tokens alone; in all, "
            f"{len(empty):,} of {number_of(len(items), 'rows have')} such a text"
        )
    return items


def _hash_key(key: list[object], config: Config, files: Sequence[TextFile]) -> str:
    """Return the hash of a key; one of an earlier version has none of these settings."""
    key += [] if config.rows is None else [config.rows, config.history]
    limits = [file.max_rows for file in files]
    key += [{"max_rows": limits}] if any(limits) else []
    key += [] if config.valid_group is None else [{"valid_group": config.valid_group}]
    breaks = config.line_break and any(f.format in formats.WITH_LINE_BREAK for f in files)
    key += [{"line_break": config.line_break}] if breaks else []
    by_row = config.valid_fraction and config.valid_group is None
    key += ["by whole rows"] if by_row and any(f.format in _COLUMNAR for f in files) else []
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()


def _items(
    rows: Iterable[Row],
    config: Config,
    objective: Task,
    counts: Counts,
    cut: Counter[str],
    empty: list[Row],
) -> Iterator[Item]:
    """Yield the items of the rows, tokenising many texts together.

    Rows with a text of unknown tokens alone are added to `empty`.
    """
    read = _texts(rows, config, objective, counts)
    while held := list(islice(read, _AT_ONCE)):
        ids = iter(objective.encode([text for _, texts in held for text in texts]))
        for row, texts in held:
            own = [next(ids) for _ in texts]
            if any(text and {*text} == {objective.unk_of(n)} for n, text in enumerate(own)):
                empty.append(row)
            try:
                item = objective.item(row, own)
            except RowError as error:
                if isinstance(error, LeftOut):
                    cut[error.what] += 1
                else:
                    _count_bad(error, row.file, row.line, config, counts)
                counts.documents -= 1
                counts.characters -= sum(map(len, texts))
                continue
            cut.update(item.cut)
            counts.unknown += objective.unknown(item)
            counts.unlearned += objective.unlearned(item)
            yield item


def _texts(
    rows: Iterable[Row], config: Config, objective: Task, counts: Counts
) -> Iterator[tuple[Row, tuple[str, ...]]]:
    for row in rows:
        try:
            texts = objective.texts(row)
        except LeftOut:
            counts.left_out += 1
        except RowError as error:
            _count_bad(error, row.file, row.line, config, counts)
        else:
            counts.documents += 1
            counts.characters += sum(map(len, texts))
            yield row, texts
