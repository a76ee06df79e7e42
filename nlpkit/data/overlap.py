"""Finds evaluation text in training text: rows that have N words in a row in common with it.

As in Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C: words are what stands
between spaces, in lower case and without punctuation, and N is 13. Characters of Chinese and
Japanese, which have no spaces, are words of their own; 13 of them are about 8 words, the least N of
that appendix. Unlike there, no run of words is left out for being common.

What is evaluated is held in memory; training text is read in pieces. Runs of words are compared by
a hash of 64 bits.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.data import formats, template
from nlpkit.data.documents import Document, gather, read_documents
from nlpkit.data.files import Input, find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.settings import Config, Part
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject

_PUNCTUATION = re.compile(r"[^\w\s]|_")
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_PIECE = 1 << 21  # characters, and rows, of training text that are looked at together
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word is lost from the hash
Note: TypeAlias = Callable[[str], None]  # what takes a line for the log


class Hashed(NamedTuple):
    """Rows, and each N words in a row of them (W,): their hash, their row, their first word.

    `words` counts all words, `with_words` the rows that have any.
    """

    rows: list[Document]
    keys: np.ndarray
    of_row: np.ndarray
    begins: np.ndarray
    words: int
    with_words: int


@dataclass(frozen=True)
class Found:
    """What of an evaluated file is in the training text; `words` and `covered` count words.

    `rows` have a word; `short` ones have too few in a row to be found at all. An example is the
    `line` of a row, its N `words`, and where they are first in the training text.
    """

    name: str
    rows: int
    short: int
    found: int
    words: int
    covered: int
    examples: list[JsonObject]


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    text = _PUNCTUATION.sub("", text.lower())
    if not text.isascii():
        text = _WITHOUT_SPACES.sub(r" \g<0> ", text)
    return text.split()


def hash_rows(rows: Iterable[Document], words: int) -> Hashed:
    """Return the rows, and each `words` in a row of them."""
    rows, hashes = list(rows), array("q")
    texts = [(number, text) for number, row in enumerate(rows) for text in row.texts]
    lengths = []  # of each text
    for _, text in texts:
        found = split_words(text)
        hashes.extend(map(hash, found))
        lengths.append(len(found))
    values = np.array(hashes).view(np.uint64)
    text_of = np.repeat(np.arange(len(lengths)), lengths)  # of each word
    count = max(len(values) - words + 1, 0)
    begins = np.flatnonzero(text_of[:count] == text_of[len(text_of) - count :])
    keys = np.zeros(count, np.uint64)
    for offset in range(words if count else 0):
        keys = keys * _FACTOR + values[offset : offset + count]
    rows_of = np.array([number for number, _ in texts], np.int64)[text_of]
    with_words = len(np.unique(rows_of))
    return Hashed(rows, keys[begins], rows_of[begins], begins, len(values), with_words)


def hash_file(name: str, rows: Iterable[Document], words: int) -> Hashed:
    """Return the rows of an evaluated file; raise `DataError` if they have no word."""
    found = hash_rows(rows, words)
    if not found.words:
        raise DataError(f"{name}: no words in any row")
    return found


class Training:
    """The training text in which files are looked for, with its `rows` and `words`.

    `places` has the first file and line of each N words in a row that a file has, by their hash.
    """

    def __init__(self, files: Iterable[Hashed], rows: Iterable[Document], words: int):
        """Look through the training text, once."""
        self.rows = self.words = 0
        self.places: dict[int, tuple[str, int]] = {}
        known = np.unique(np.concatenate([file.keys for file in files]))
        for piece in (hash_rows(each, words) for each in gather(rows, _PIECE, _PIECE)):
            self.rows += len(piece.rows)
            self.words += piece.words
            keys, first = np.unique(piece.keys, return_index=True)
            for at in first[np.isin(keys, known, assume_unique=True)]:
                row = piece.rows[piece.of_row[at]]
                self.places.setdefault(int(piece.keys[at]), (row.file, row.line))


def count_found(
    name: str, file: Hashed, places: Mapping[int, tuple[str, int]], words: int, examples: int
) -> Found:
    """Return what of a file has `places`, with up to so many examples, each of another row."""
    is_found = np.isin(file.keys, np.array(list(places), np.uint64))
    covered = np.unique(file.begins[is_found][:, None] + np.arange(min(words, file.words)))
    numbers, first = np.unique(file.of_row[is_found], return_index=True)
    shown: list[JsonObject] = []
    for at in np.flatnonzero(is_found)[first[:examples]]:
        row = file.rows[file.of_row[at]]
        split = map(split_words, row.texts)
        in_row = [each[n : n + words] for each in split for n in range(len(each) - words + 1)]
        number = at - np.searchsorted(file.of_row, file.of_row[at])
        training, line = places[int(file.keys[at])]
        example = {"line": row.line, "file": training, "training_line": line}
        shown.append({**example, "words": " ".join(in_row[number])})
    short = file.with_words - len(np.unique(file.of_row))
    return Found(name, file.with_words, short, len(numbers), file.words, len(covered), shown)


def find_files(names: Sequence[str], copies: Path, note: Note) -> list[tuple[str, Input]]:
    """Return each file that paths and globs name, by its name; `note` what is read of folders."""
    inputs, _ = find_inputs(Config.model_validate({"train": [*names]}), None, copies)
    for each in (each for entry in inputs for each in entry.notes):
        note(f"data: {each}")
    return [(file.name, Input((file,), 1.0)) for each in inputs for file in each.files]


def read_file(source: Input, text_key: str | None = None) -> Iterator[Document]:
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
) -> Iterator[Document]:
    """Yield the text that a recipe trains on, of a task all texts of its rows, or of a column.

    `columns` are those that the task names; None: running text.
    """
    part: Part = "train" if config.valid_fraction else "all"
    if columns is None:
        yield from read_documents(inputs, config, Counts(), part=part)
        return
    for row in read_rows(inputs, config, columns, Counts(), part):
        try:
            texts = (template.text_at(row.values, text_key),) if text_key else _texts(row.values)
        except RowError as error:
            raise DataError(f"{row.file}:{row.line}: {error.what}") from error
        yield Document(tuple(dict.fromkeys(texts)), row.file, row.line)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in the values of a row; those of a list of words are one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(e, str) and " " not in e for e in value):
        yield " ".join(value)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
