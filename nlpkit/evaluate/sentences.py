"""Texts with their places in files, for minimal pairs and surprisal. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.data.cache import cache_directory
from nlpkit.data.documents import read
from nlpkit.data.files import find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.disk import user_path
from nlpkit.errors import DataError

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"  # the columns of BLiMP's files


@dataclass(frozen=True)
class Sentence:
    """A text; `place` is `FILE:LINE`, for a sentence of a pair with `:good` or `:bad`."""

    text: str
    place: str


@dataclass(frozen=True)
class Pair:
    """An acceptable and an unacceptable sentence that differ as little as possible."""

    good: Sentence
    bad: Sentence
    paradigm: str
    place: str


def read_pairs(files: Sequence[str]) -> list[Pair]:
    """Return the pairs of BLiMP's jsonl files, or of csv and tsv files with the same columns.

    The paradigm is in `UID`; without this column it is the file's name. A directory stands for its
    jsonl files.

    Raises:
        DataError: `file:line: what` is wrong with a row, or there are no pairs.
        FileError: there is no such file.
    """
    config = DataConfig.model_validate({"train": [_expand(name) for name in files]})
    inputs, _ = find_inputs(config, None, cache_directory(None, None, lambda _: None))
    pairs = []
    for row in read_rows(inputs, config, (GOOD, BAD), Counts()):
        place = f"{row.file}:{row.line}"
        try:
            good, bad = row.text(GOOD), row.text(BAD)
            named = row.text(PARADIGM) if PARADIGM in row.values else ""
        except RowError as error:
            raise DataError(f"{place}: {error.what}") from error
        pairs.append(
            Pair(
                Sentence(good, f"{place}:good"),
                Sentence(bad, f"{place}:bad"),
                named or Path(row.file).name.split(".")[0],
                place,
            )
        )
    if not pairs:
        raise DataError(f"{', '.join(files)}: no pairs")
    return pairs


def read_texts(files: Sequence[str], text_key: str | None) -> list[Sentence]:
    """Return the documents of files, such as the lines of a txt file.

    Raises:
        DataError: `file:line: what` is wrong, or there are no texts.
        FileError: there is no such file.
    """
    settings = {} if text_key is None else {"text_key": text_key}
    config = DataConfig.model_validate({"train": list(files), **settings})
    inputs, _ = find_inputs(config, None, cache_directory(None, None, lambda _: None))
    found = []
    for entry in inputs:
        for file in entry.files:
            try:
                documents = list(read(file, config, Counts()))
            except RowError as bad:
                raise DataError(f"{file.name}:{bad.line}: {bad.what}") from bad
            found += [Sentence(each.text, f"{file.name}:{each.line}") for each in documents]
    if not found:
        raise DataError(f"{', '.join(files)}: no text")
    return found


def _expand(name: str) -> dict[str, list[str]]:
    """Return the source for a file, a glob, or the jsonl files of a directory."""
    folder = user_path(name)
    if not folder.is_dir():
        return {"files": [name]}
    files = sorted(str(path) for path in folder.iterdir() if ".jsonl" in path.name)
    if not files:
        raise DataError(f"{name}: a directory without jsonl files")
    return {"files": files}
