"""Finds evaluation text in training text: rows that have N words in a row in common with it.

As in Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C: words are what stands
between spaces, in lower case and without punctuation, and N is 13. Characters of Chinese and
Japanese, which have no spaces, are words of their own; 13 of them are about 8 words, the least N of
that appendix. Unlike there, no run of words is left out for being common.

What is evaluated is held in memory, about 60 bytes a word; training text is read in pieces. Runs of
words are compared by a hash of 64 bits.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from nlpkit.errors import DataError

WORDS = 13
_PUNCTUATION = re.compile(r"[^\w\s]|_")
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_PIECE = 1 << 19  # words of training text that are looked at together
_UNKNOWN = -1  # a word that no evaluated text has, or the end of a text
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word is lost from the hash
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Row:
    """The texts of a row, or of a document, and where it is; `line` counts from 1."""

    texts: tuple[str, ...]
    file: str
    line: int


@dataclass(frozen=True)
class Example:
    """N words in a row, and where they are first in the evaluated file and in training text."""

    line: int
    file: str
    training_line: int
    words: str


@dataclass
class Found:
    """What of an evaluated file is in the training text; `words` and `covered` count words.

    `rows` have a word; `short` ones have too few in a row to be found at all.
    """

    name: str
    rows: int = 0
    short: int = 0
    found: int = 0
    words: int = 0
    covered: int = 0
    examples: list[Example] = field(default_factory=list)


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    text = _PUNCTUATION.sub("", text.lower())
    if not text.isascii():
        text = _WITHOUT_SPACES.sub(r" \g<0> ", text)
    return text.split()


@dataclass
class _File:
    """The words of an evaluated file as numbers (T,), with the number of the row of each (T,)."""

    name: str
    ids: np.ndarray
    rows: np.ndarray
    lines: list[int]  # of each row
    keys: np.ndarray = field(default_factory=lambda: _NONE)  # the hash of N words from each on
    whole: np.ndarray = field(default_factory=lambda: _NONE)  # where such N words begin, bool


class Overlap:
    """The evaluated files, and where their words were found.

    Call `add` for each file, `search` with the training text, then `results`.
    """

    def __init__(self, words: int = WORDS):
        self.words = words
        self.rows = self.searched = 0  # rows and words of the training text
        self._numbers: dict[str, int] = {}
        self._files: list[_File] = []

    def add(self, name: str, rows: Iterable[Row]) -> None:
        """Read an evaluated file; raise `DataError` if it has no word."""
        ids: list[int] = []
        of_row: list[int] = []
        lines: list[int] = []
        number_of = self._numbers
        for row in rows:
            begin = len(ids)
            for text in row.texts:
                ids += [number_of.setdefault(word, len(number_of)) for word in split_words(text)]
                ids.append(_UNKNOWN)
            of_row += [len(lines)] * (len(ids) - begin)
            lines.append(row.line)
        if all(each == _UNKNOWN for each in ids):
            raise DataError(f"{name}: no words in any row")
        self._files.append(_File(name, np.array(ids, np.int32), np.array(of_row, np.int32), lines))

    def search(self, rows: Iterable[Row]) -> None:
        """Look through the training text, once."""
        random = np.random.default_rng(0)
        values = random.integers(1 << 64, size=len(self._numbers), dtype=np.uint64)  # of each word
        for each in self._files:
            each.keys, each.whole = self._hash(each.ids, values)
        hashes = [each.keys[each.whole] for each in self._files]
        self._known = np.unique(np.concatenate([_NONE.astype(np.uint64), *hashes]))
        # For each of these N words, the first row of training text that has them; -1: none has.
        self._place = np.full(len(self._known), -1, np.int64)
        self._places: list[tuple[str, int]] = []
        for ids, ends, places in self._pieces(rows):
            keys, whole = self._hash(ids, values)
            at = np.flatnonzero(whole)
            number = self._find(keys[at])
            at, number = at[number >= 0], number[number >= 0]
            number, first = np.unique(number, return_index=True)
            is_new = self._place[number] < 0
            rows_of = np.searchsorted(ends, at[first[is_new]], side="right")
            used, renumbered = np.unique(rows_of, return_inverse=True)
            self._place[number[is_new]] = len(self._places) + renumbered
            self._places += [places[row] for row in used]

    def results(self, examples: int) -> list[Found]:
        """Return what was found of each file, with up to so many examples, each of another row."""
        names = list(self._numbers)
        return [self._result(each, names, examples) for each in self._files]

    def _result(self, file: _File, names: list[str], examples: int) -> Found:
        is_word = file.ids != _UNKNOWN
        begins = np.flatnonzero(file.whole)
        place = self._place[self._find(file.keys[begins])]
        hits, place = begins[place >= 0], place[place >= 0]
        steps = np.zeros(len(file.ids) + 1, np.int64)
        np.add.at(steps, hits, 1)
        np.add.at(steps, hits + self.words, -1)
        found, first = np.unique(file.rows[hits], return_index=True)
        rows = len(np.unique(file.rows[is_word]))
        result = Found(file.name, rows, rows - len(np.unique(file.rows[begins])), len(found))
        result.words = int(is_word.sum())
        result.covered = int((np.cumsum(steps) > 0).sum())
        for row, index in zip(found[:examples], first[:examples], strict=True):
            begin, (training, line) = hits[index], self._places[place[index]]
            shown = " ".join(names[n] for n in file.ids[begin : begin + self.words])
            result.examples.append(Example(file.lines[row], training, line, shown))
        return result

    def _pieces(
        self, rows: Iterable[Row]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, list[tuple[str, int]]]]:
        """Yield the numbers of words (T,), where each row ends in them, and the rows' places."""
        ids: list[int] = []
        ends: list[int] = []
        places: list[tuple[str, int]] = []
        for row in rows:
            for text in row.texts:
                words = split_words(text)
                self.searched += len(words)
                ids += map(self._numbers.get, words, repeat(_UNKNOWN))
                ids.append(_UNKNOWN)
            self.rows += 1
            ends.append(len(ids))
            places.append((row.file, row.line))
            if len(ids) >= _PIECE:
                yield np.array(ids, np.int32), np.array(ends), places
                ids, ends, places = [], [], []
        yield np.array(ids, np.int32), np.array(ends, np.int64), places

    def _hash(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a hash of the N words from each on, (T,) uint64, and whether they are N, (T,)."""
        count = max(len(ids) - self.words + 1, 0)
        keys, whole = np.zeros(len(ids), np.uint64), np.zeros(len(ids), bool)
        if count and len(values):
            unknown = np.concatenate([[0], np.cumsum(ids == _UNKNOWN)])
            whole[:count] = unknown[self.words :] == unknown[: -self.words]
            of_word = values[ids]
            for offset in range(self.words):
                keys[:count] = keys[:count] * _FACTOR + of_word[offset : offset + count]
        return keys, whole

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of each hash among those of evaluated text, -1 where there is none."""
        if not len(self._known):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        return np.where(self._known[at] == keys, at, -1)
