"""An inverted index: the documents that contain each word, and how often.

N documents, V terms, P postings (pairs of a term and a document that contains it).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np

from nlpkit.score.search.words import Words

_CHUNK = 8192  # words that are numbered at a time; they fit in the cache of the CPU


@dataclass(frozen=True)
class Index:
    """The index; the postings of term t are `starts[t]:starts[t + 1]`, sorted by document."""

    ids: list[str]  # N
    terms: dict[str, int]  # V
    starts: np.ndarray  # (V + 1,) int64
    documents: np.ndarray  # (P,) int32
    counts: np.ndarray  # (P,) int32: how often the term is in the document
    lengths: np.ndarray  # (N,) int32: words of each document

    @cached_property
    def frequencies(self) -> np.ndarray:
        """The number of documents that contain each term: (V,) int64."""
        return np.diff(self.starts)

    @cached_property
    def mean_length(self) -> float:
        """The mean number of words of a document, 0 if there is no document."""
        return float(self.lengths.mean()) if len(self.lengths) else 0.0

    def postings(self, term: int) -> slice:
        """Return the slice of the postings of a term."""
        return slice(int(self.starts[term]), int(self.starts[term + 1]))


def build(records: Iterable[tuple[str, str]], words: Words) -> Index:
    """Return the index of documents given as (identifier, text); terms in order of first use."""
    terms: defaultdict[str, int] = defaultdict(count().__next__)
    ids: list[str] = []
    lengths: list[int] = []
    pending: list[str] = []
    numbered: list[np.ndarray] = []
    for key, text in records:
        tokens = words(text)
        ids.append(key)
        lengths.append(len(tokens))
        pending += tokens
        if len(pending) >= _CHUNK:
            numbered.append(_number(pending, terms))
            pending = []
    numbered.append(_number(pending, terms))
    sizes = np.array(lengths, dtype=np.int32)
    starts, documents, counts = _invert(np.concatenate(numbered), sizes, len(terms))
    return Index(ids, dict(terms), starts, documents, counts, sizes)


def _number(words: list[str], terms: defaultdict[str, int]) -> np.ndarray:
    return np.fromiter(map(terms.__getitem__, words), np.int32, len(words))


def _invert(
    numbers: np.ndarray, lengths: np.ndarray, terms: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, documents and counts; `numbers` are the terms of all words in order."""
    keys = numbers.astype(np.int64) << 32
    keys |= np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    keys.sort()
    is_first = np.empty(len(keys), dtype=bool)
    is_first[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    counts = np.diff(first, append=len(keys)).astype(np.int32)
    keys = keys[first]
    starts = np.searchsorted(keys, np.arange(terms + 1, dtype=np.int64) << 32)
    # The lower half of each key is the document.
    return starts, keys.astype(np.int32), counts
