"""The texts of a task's rows, where they train the tokenizer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.data import formats, template
from nlpkit.data.documents import find_key
from nlpkit.data.files import Input
from nlpkit.data.items import Row, read_rows, read_texts
from nlpkit.runs.vocabulary import TrainingText


def are_rows(text: TrainingText) -> bool:
    """Return whether files of a task are read by rows, not as documents."""
    files = [file for entry in text.inputs for file in entry.files]
    if text.resolved.recipe.data.rows is not None:
        return True
    return any(_has_own_texts(text, f) or not formats.documents(f.format) for f in files)


def _has_own_texts(text: TrainingText, file: TextFile) -> bool:
    """Return whether the texts of a file are those that the task reads, not those of a key."""
    data = text.resolved.recipe.data
    if file.format == "parallel" or file.text_key or data.text_key != "text":
        return False
    by_line = formats.documents(file.format) == "lines"
    return "text" not in text.columns or data.rows is not None or not by_line


def read(text: TrainingText, counts: Counts) -> Iterator[str]:
    """Yield the texts of the rows; of files with a key, those of `text_key`."""
    data, config = text.resolved.recipe.data, text.objective.config
    task: Any = text.objective.objective
    for file in (file for entry in text.inputs for file in entry.files):
        parts = formats.parts(file.format)
        keys = parts if len(parts) > 1 else (find_key(file, data),)
        find: Callable[[Row], Iterable[str]] = partial(_find_texts, keys)
        if _has_own_texts(text, file):
            find = partial(task.vocabulary_texts, config)
        rows = list_rows(replace(text, inputs=[Input((file,), 1.0)]), counts)
        yield from read_texts(rows, find, data, counts)


def _find_texts(keys: Sequence[str], row: Row) -> list[str]:
    return [template.text_at(row.values, key) for key in keys]


def list_rows(text: TrainingText, counts: Counts) -> Iterator[Row]:
    """Yield the rows of the task, counted."""
    data = text.resolved.recipe.data
    for row in read_rows(text.inputs, data, text.columns, counts, text.part, text.callbacks):
        counts.documents += 1
        yield row
