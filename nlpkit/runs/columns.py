"""Checks that files have the columns that a recipe names, before torch is loaded.

The first row of the first files of each source is read. What is in the other rows is checked where
they are read in earnest.
"""

import os
from collections.abc import Sequence
from itertools import islice

from nlpkit.contracts.reader import Counts, Row, RowError, TextFile
from nlpkit.contracts.task import Task
from nlpkit.data import formats
from nlpkit.data.documents import check_format, read_documents
from nlpkit.data.files import Input, find_files, find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.template import columns
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.recipe import Resolved
from nlpkit.recipe.places import Document, Problem, value_at

_FILES = 3  # of a source
_ROWS = 20  # of a file whose malformed rows are skipped
_WHOLE = ("json", "squad")  # formats of which the first row is known once the file is read
_LONG = 4 << 20  # bytes; a longer file of these is not read twice


def check(resolved: Resolved) -> list[str]:
    """Return warnings; raise `DataError` if a file lacks a column, `FileError` if it is missing."""
    config, warnings = resolved.recipe.data, list[str]()
    objective = resolved.recipe.objective[0].objective
    try:
        train, valid = find_inputs(config, resolved.base, None)
        used = {file.format for each in train + valid for file in each.files}
        if config.line_break is not None and used and not used & {*formats.WITH_LINE_BREAK}:
            raise UsageError("data.line_break: only files of text, tsv and parallel lines have it")
    except (FileError, UsageError) as error:
        raise type(error)(_locate(error, resolved)) from error
    if resolved.recipe.eval.pairs:
        from nlpkit.runs import pairs

        pairs.read_named(resolved)
    if config.text_key != "text" or any(s.text_key for s in config.train + config.valid):
        from nlpkit.runs import text_keys

        warnings += text_keys.find_unread(resolved, issubclass(objective, Task), train + valid)
    files = [file for source in train + valid for file in source.files[:_FILES]]
    for file in (f for f in files if f.format not in _WHOLE or os.path.getsize(f.path) <= _LONG):
        if issubclass(objective, Task):
            _check_rows(file, resolved, objective)
        elif objective.reads_text:
            warnings += _check_text(file, config)
    return warnings


def _locate(error: FileError | UsageError, resolved: Resolved) -> str:
    """Return what an error says with the place of a setting: the first that names no file."""
    config, base = resolved.recipe.data, resolved.base
    for part, sources in (("train", config.train), ("valid", config.valid)):
        for number, source in enumerate(sources):
            try:
                list(find_files(source, source.format or config.format, base))
            except FileError:
                return resolved.document.locate(f"data.{part}.{number}: {error}")
    return resolved.document.locate(str(error))


def _check_rows(file: TextFile, resolved: Resolved, task: type[Task]) -> None:
    config, settings = resolved.recipe.data, resolved.recipe.objective[0].config
    names = task.named_columns(settings)
    rows = read_rows([Input((file,), 1.0)], config, names, Counts())
    mistakes: list[tuple[str, str]] = []
    for row in islice(rows, 1 if config.on_error == "stop" else _ROWS):
        try:
            task.check_columns(settings, row)
        except RowError as error:
            where = _find_setting(resolved.document, names, row)
            mistakes.append((error.what, f"{row.file}:{row.line}: {error.what}{where}"))
        else:
            return
    if mistakes:
        whats = [what for what, _ in mistakes]
        raise DataError(max(mistakes, key=lambda each: whats.count(each[0]))[1])


def _find_setting(document: Document, names: Sequence[str], row: Row) -> str:
    """Return the place of the setting that names a column which a row lacks, if it is written."""
    lacking = {name for name in names if _lacks(row, name)}
    for path, place in document.places.items():
        text = value_at(document.data, path) if path[:1] == ("objective",) else None
        if isinstance(text, str) and lacking.intersection(columns(text)):
            return f" ({Problem.at(place, path, text)})"
    return ""


def _lacks(row: Row, column: str) -> bool:
    try:
        row.find(column)
    except RowError:
        return True
    return False


def _check_text(file: TextFile, config: DataConfig) -> list[str]:
    check_format(file, config)
    if config.on_error == "stop":
        next(read_documents([Input((file,), 1.0)], config, Counts()), None)
    if file.format != "text" or config.line_break is not None:
        return []
    from nlpkit.data import wrapped

    return wrapped.describe(file)
