"""Reads the texts that are looked for in training text, and those in which they are looked for."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.data import formats, template
from nlpkit.data.documents import read_documents
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.overlap import Row
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError


def find_files(names: Sequence[str], copies: Path) -> list[tuple[str, Input]]:
    """Return each file that paths and globs name, by the name that messages have."""
    inputs, _ = find_inputs(Config.model_validate({"train": [*names]}), None, copies)
    return [(file.name, Input((file,), 1.0)) for each in inputs for file in each.files]


def read_file(source: Input, text_key: str | None = None) -> Iterator[Row]:
    """Return the lines of a text file, or of rows all texts, or those in a column."""
    is_text = source.files[0].format in formats.TEXT_FORMATS
    columns = template.columns(text_key) if text_key else ()
    config = Config.model_validate({"train": ["-"]})
    return read_inputs([source], config, None if is_text else columns, text_key)


def read_inputs(
    inputs: Sequence[Input],
    config: Config,
    columns: Sequence[str] | None,
    text_key: str | None = None,
) -> Iterator[Row]:
    """Yield the text that a recipe trains on, of a task all texts of its rows, or of a column.

    `columns` are those that the task names; None: running text.
    """
    part: Part = "train" if config.valid_fraction else "all"
    if columns is None:
        for each in read_documents(inputs, config, Counts(), part=part):
            yield Row(each.texts, each.file, each.line)
        return
    for row in read_rows(inputs, config, columns, Counts(), part):
        try:
            texts = (template.text_at(row.values, text_key),) if text_key else _texts(row.values)
        except RowError as error:
            raise DataError(f"{row.file}:{row.line}: {error.what}") from error
        yield Row(tuple(dict.fromkeys(texts)), row.file, row.line)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in the values of a row; those of a list of words are one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(e, str) and " " not in e for e in value):
        yield " ".join(value)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
