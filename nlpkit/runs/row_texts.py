"""The texts of a task's rows, where they train the tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nlpkit.contracts.reader import Counts
from nlpkit.data import formats, template
from nlpkit.data.documents import find_key
from nlpkit.data.files import Input
from nlpkit.data.items import Row, read_rows, read_texts
from nlpkit.runs.vocabulary import TrainingText


def are_rows(text: TrainingText) -> bool:
    """Return whether the files of a task are read by rows, not as documents."""
    data = text.resolved.recipe.data
    files = [file for entry in text.inputs for file in entry.files]
    found = {file.format for file in files}
    is_named = data.text_key != "text" or all(file.text_key for file in files)
    if "parallel" not in found and not is_named and "text" not in text.columns:
        return True  # rows that have their texts in other columns
    return data.rows is not None or not any(formats.documents(each) == "lines" for each in found)


def read(text: TrainingText, counts: Counts) -> Iterator[str]:
    """Yield the texts of the rows; of rows that are documents, those of `text_key`."""
    data, config = text.resolved.recipe.data, text.objective.config
    task: Any = text.objective.objective
    if are_rows(text):
        find = partial(task.vocabulary_texts, config)
        yield from read_texts(list_rows(text, counts), find, data, counts)
        return
    for file in (file for entry in text.inputs for file in entry.files):
        parts = formats.parts(file.format)
        keys = parts if len(parts) > 1 else (find_key(file, data),)
        rows = list_rows(replace(text, inputs=[Input((file,), 1.0)]), counts)
        yield from read_texts(rows, partial(_find_texts, keys), data, counts)


def _find_texts(keys: Sequence[str], row: Row) -> list[str]:
    return [template.text_at(row.values, key) for key in keys]


def list_rows(text: TrainingText, counts: Counts) -> Iterator[Row]:
    """Yield the rows of the task, counted."""
    data = text.resolved.recipe.data
    for row in read_rows(text.inputs, data, text.columns, counts, text.part, text.callbacks):
        counts.documents += 1
        yield row
