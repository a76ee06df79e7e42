"""Texts that are longer than a sequence, in windows: a row is then several sequences.

T tokens of a text, W words.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nlpkit.contracts.reader import Row, RowError
from nlpkit.data.lines import kind_of

BETWEEN = "\n"  # between the words of a text that is to be tokenised
# Scripts without spaces between words: Chinese characters, kana, and their punctuation.
_UNSPACED = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")


class Located(list[int]):
    """The ids of a text, and where its parts are.

    `spans` has [start, stop) of each part: the characters of each token, or the tokens of each
    word.
    """

    def __init__(self, ids: Iterable[int], spans: Sequence[tuple[int, int]]):
        super().__init__(ids)
        self.spans = spans


class Window(NamedTuple):
    """The words [start, stop) of a sequence, of which [first, last) are predicted in it."""

    start: int
    stop: int
    first: int
    last: int


def word_windows(sizes: np.ndarray, room: int, overlap: int) -> list[Window]:
    """Return windows of at most `room` tokens over words of `sizes` (W,) tokens, each <= `room`.

    Each word is predicted in one window. Neighbouring windows share about `overlap` tokens, at most
    half the room; the first half of them is predicted in the one, the second half in the other.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    overlap = min(overlap, room // 2)
    windows: list[Window] = []
    start = first = 0
    while True:
        stop = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        if stop == len(sizes):
            return [*windows, Window(start, stop, first, stop)]
        # The next window must hold the next word.
        after = int(np.searchsorted(ends, max(ends[stop] - overlap, ends[stop + 1] - room)))
        last = (after + stop + 1) // 2
        windows.append(Window(start, stop, first, last))
        start, first = after, last


def token_windows(count: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return [start, stop) of windows of at most `room` tokens over `count` tokens.

    A window begins `stride` tokens after the one before it (Devlin et al. 2018, `doc_stride` in the
    authors' code), but never behind its end.
    """
    stride = min(stride, room)
    windows = [(0, min(room, count))]
    while windows[-1][1] < count:
        start = windows[-1][0] + stride
        windows.append((start, min(start + room, count)))
    return windows


def space_words(words: Sequence[str]) -> list[str]:
    """Return the words with the space before them that a text would have."""
    spaced = []
    for before, word in zip(["", *words], words, strict=False):
        text = word.replace(BETWEEN, " ")
        is_close = not before or _UNSPACED.match(text) or _UNSPACED.match(before[-1])
        spaced.append(text if is_close else f" {text}")
    return spaced


def read_words(row: Row, column: str) -> list[str]:
    """Return the words in a column: of a list, or the characters of a text; raise `RowError`."""
    value = row.value(column)
    words = list(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RowError(f'"{column}" is {kind_of(value)}, not a list of strings')
    if not words:
        raise RowError(f'"{column}" is empty')
    return words
