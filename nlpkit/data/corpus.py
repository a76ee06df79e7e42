"""A corpus: the token ids of documents, memory-mapped from the stores that `store` builds.

tokens.bin   the ids of all documents, one after another, uint16 or uint32
offsets.npy  (D + 1,) int64: document i is tokens[offsets[i]:offsets[i + 1]]
marks.bin    where the objective has `token_flags`: a byte beside each token, uint8; the name is old
meta.json    counts, and hashes of the others
"""

import bisect
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from nlpkit.contracts.batch import bit
from nlpkit.contracts.reader import Bad, Counts


class TokenStore:
    """The documents of a source as ids; opened from its directory, pickled as its path."""

    def __init__(self, path: Path, names: Sequence[str]):
        """Open a store; `names` are what its files are called now, for messages."""
        self.path, self._names = path, names
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        self.fingerprint: str = meta["key"]
        self.tokens: int = meta["tokens"]
        self._offsets = np.load(path / "offsets.npy", mmap_mode="r")
        self._ids = self._map("tokens.bin", meta["dtype"])
        self._flags = self._map("marks.bin", "u1") if meta.get("marks") else None
        self.counts = Counts()
        for name, (_, kept) in zip(names, meta["files"], strict=True):
            bad = [Bad(name, line, what) for _, line, what in kept["first_bad"]]
            self.counts.add(Counts(**{**kept, "first_bad": bad}))

    def _map(self, name: str, dtype: str) -> np.ndarray:
        # An empty file cannot be mapped.
        return np.memmap(self.path / name, dtype, "r") if self.tokens else np.zeros(0, dtype)

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path, Sequence[str]]]:
        return TokenStore, (self.path, self._names)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each document, (D,) int64; computed at each call."""
        return np.diff(np.asarray(self._offsets))

    def document(self, index: int) -> np.ndarray:
        """Return the ids of a document, (T,), a read-only view of the file."""
        return np.asarray(self._ids)[self._offsets[index] : self._offsets[index + 1]]

    def document_flags(self, index: int) -> np.ndarray:
        """Return the flags of a document's tokens, (T,) uint8, of a store that has flags."""
        return np.asarray(self._flags)[self._offsets[index] : self._offsets[index + 1]]

    def flagged_tokens(self, name: str) -> np.ndarray:
        """Return the numbers of the tokens that have the flag `name`; reads all flags."""
        return np.flatnonzero(np.asarray(self._flags) & bit(name))


class Corpus:
    """Several stores with weights, documents numbered through; drawing by weight is the loader's.

    `weights` (S,) float64 are as in the recipe, not normalised; `starts` (S + 1,) int64 are the
    numbers of each store's first document.
    """

    NOUN = "documents"
    remark = ""  # on its figures
    cut: Mapping[str, int] = MappingProxyType({})  # only rows of tasks are cut
    words: np.ndarray | None = None  # (D,) of each document, where the run counts them

    def __init__(self, parts: Sequence[tuple[TokenStore, float]]):
        self.stores = [store for store, _ in parts]
        self.weights = np.array([weight for _, weight in parts], np.float64)
        self.starts = np.cumsum([0, *map(len, self.stores)], dtype=np.int64)
        self.lengths = np.concatenate([store.lengths for store in self.stores])
        self.tokens = sum(store.tokens for store in self.stores)
        self.counts = Counts()  # what was read and left out
        for store in self.stores:
            self.counts.add(store.counts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _find(self, index: int) -> tuple[TokenStore, int]:
        """Return the store that has document `index`, and its number there."""
        source = bisect.bisect_right(self.starts, index) - 1
        return self.stores[source], index - int(self.starts[source])

    def document(self, index: int) -> np.ndarray:
        """Return the ids of a document, (T,), a read-only view of its file."""
        store, number = self._find(index)
        return store.document(number)

    def flags(self, index: int) -> np.ndarray:
        """Return the flags of a document's tokens, (T,) uint8."""
        store, number = self._find(index)
        return store.document_flags(number)

    def flagged_tokens(self, name: str) -> np.ndarray:
        """Return where tokens with the flag `name` are in all documents as one; reads all flags."""
        before = np.cumsum([0, *(store.tokens for store in self.stores)])
        parts = zip(self.stores, before, strict=False)
        return np.concatenate([store.flagged_tokens(name) + start for store, start in parts])

    def histogram(self) -> np.ndarray:
        """Return how often each id occurs, whatever the weights, (largest id + 1,) int64."""
        total = np.zeros(0, np.int64)
        at_once = 1 << 22  # tokens, of which each takes 8 bytes meanwhile
        for store in self.stores:
            for start in range(0, store.tokens, at_once):
                found = np.bincount(store._ids[start : start + at_once], minlength=len(total))
                found[: len(total)] += total
                total = found
        return total

    def unigram_entropy(self, without: int | None = None) -> float:
        """Return the entropy of the token frequencies of all stores together, nats per token.

        Reads every token. The token `without` is not counted.
        """
        total = self.histogram()
        if without is not None:
            total[without : without + 1] = 0
        seen = total[total > 0]
        share = seen / seen.sum()
        return max(0.0, -math.fsum(share * np.log(share)))

    @property
    def fingerprint(self) -> str:
        """A hash of the stores, their order and their weights."""
        parts = zip(self.stores, self.weights, strict=True)
        text = json.dumps([[store.fingerprint, float(weight)] for store, weight in parts])
        return hashlib.sha256(text.encode()).hexdigest()
