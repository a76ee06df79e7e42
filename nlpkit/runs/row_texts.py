"""The texts of a task's rows, where they train the tokenizer."""

from collections.abc import Iterator
from typing import Any

from nlpkit.contracts.reader import Counts
from nlpkit.data import formats
from nlpkit.data.items import Row, read_rows, read_texts
from nlpkit.recipe.fit import load_class
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
    """Yield the texts of the rows."""
    data, config = text.resolved.recipe.data, text.objective.config
    task: Any = load_class(text.objective.name)
    yield from read_texts(list_rows(text, counts), task, config, data, counts)


def list_rows(text: TrainingText, counts: Counts) -> Iterator[Row]:
    """Yield the rows of the task, counted."""
    data = text.resolved.recipe.data
    for row in read_rows(text.inputs, data, text.columns, counts, text.part, text.callbacks):
        counts.documents += 1
        yield row
