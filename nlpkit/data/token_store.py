"""A store: the token ids of documents on disk, memory-mapped.

tokens.bin   the ids of all documents, one after another, uint16 or uint32
offsets.npy  (D + 1,) int64: document i is tokens[offsets[i]:offsets[i + 1]]
marks.bin    where the objective asks for marks: a byte beside each token, uint8
meta.json    counts, sizes and hashes of the others; written last
"""

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nlpkit.contracts.batch import bit
from nlpkit.contracts.reader import Bad, Counts
from nlpkit.data import cache, tokenize
from nlpkit.data.cache import Callbacks
from nlpkit.data.settings import Config, Part
from nlpkit.data.tokenize import BuildSpec
from nlpkit.disk import file_sha256
from nlpkit.errors import DataError, FileError
from nlpkit.plural import all_of, number_of

VERSION = 1  # part of every key: change it if the same text gives another store


class TokenStore:
    """The documents of a source as ids; opened from its directory, pickled as its path."""

    def __init__(self, path: Path, names: Sequence[str] | None = None):
        """Open a store; `names` are what its files are called now, for messages.

        Raise `FileError` if it is damaged: unreadable, or of another size than it should be.
        """
        self.path = path
        self._names = list(names) if names is not None else None
        try:
            meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
            self._read(meta)
        except FileNotFoundError as error:
            raise FileError(
                f"{path}: damaged token store: no {Path(error.filename).name}"
            ) from error
        except OSError as error:
            raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, EOFError) as error:
            raise FileError(f"{path}: damaged token store: {error}") from error

    def _read(self, meta: dict) -> None:
        if meta["version"] != VERSION:
            raise ValueError(f"version {meta['version']}, not {VERSION}")
        # Stores of earlier versions have no hash of `meta.json`.
        if meta.get("meta_sha256") not in (None, meta_hash(meta)):
            raise ValueError("meta.json has changed")
        for name, size in meta["sizes"].items():
            there = (self.path / name).stat().st_size
            if there != size:
                raise ValueError(f"{name} has {there} bytes, not {size}")
        self.fingerprint: str = meta["key"]
        self.tokenizer_fingerprint: str = meta["tokenizer"]
        self.tokens: int = meta["tokens"]
        self._entropy: float = meta["unigram_entropy"]
        self._sha256: dict[str, str] = meta["sha256"]
        dtype = np.dtype(meta["dtype"])
        # An empty file cannot be mapped.
        self._ids: np.ndarray | None = (
            np.memmap(self.path / "tokens.bin", dtype, mode="r")
            if self.tokens
            else np.zeros(0, dtype)
        )
        self._documents: int = meta["documents"]
        # numpy reads its header as Python code, where damage can be any error: `verify` finds it.
        header = meta["sizes"]["offsets.npy"] - 8 * (self._documents + 1)
        self._offsets: np.ndarray | None = np.memmap(
            self.path / "offsets.npy", np.int64, mode="r", offset=header
        )
        if (self._offsets[0], self._offsets[-1]) != (0, self.tokens):
            raise ValueError("offsets.npy does not belong to tokens.bin")
        if len(self._ids) != self.tokens:
            raise ValueError(f"tokens.bin has {len(self._ids)} tokens, not {self.tokens}")
        self.marks: tuple[str, ...] = tuple(meta.get("marks", ()))
        self._marks: np.ndarray | None = None
        if self.marks and self.tokens:
            self._marks = np.memmap(self.path / "marks.bin", np.uint8, mode="r")
            if len(self._marks) != self.tokens:
                raise ValueError(f"marks.bin has {len(self._marks)} marks, not {self.tokens}")
        names = self._names or [name for name, _ in meta["files"]]
        self.file_counts: list[tuple[str, Counts]] = [
            (name, _counts(kept, name))
            for name, (_, kept) in zip(names, meta["files"], strict=True)
        ]
        self.counts = Counts()
        for _, counts in self.file_counts:
            self.counts.add(counts)

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path, list[str] | None]]:
        return TokenStore, (self.path, self._names)

    def __len__(self) -> int:
        return self._documents

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each document, (D,) int64; computed at each call."""
        return np.diff(np.asarray(self._check_open(self._offsets)))

    def document(self, index: int) -> np.ndarray:
        """Return the ids of a document, (T,), a read-only view of the file."""
        return self._slice_document(self._ids, index)

    def document_marks(self, index: int) -> np.ndarray:
        """Return the marks of a document's tokens, (T,) uint8, of a store that has marks."""
        return self._slice_document(self._marks, index)

    def places(self, name: str) -> np.ndarray:
        """Return the numbers of the tokens that have the mark `name`; reads all marks."""
        if not self.tokens:
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.asarray(self._check_open(self._marks)) & bit(name))

    def _slice_document(self, array: np.ndarray | None, index: int) -> np.ndarray:
        index = operator.index(index)
        if not 0 <= index < self._documents:
            raise IndexError(f"document {index} of {self._documents}")
        offsets = self._check_open(self._offsets)
        return np.asarray(self._check_open(array))[offsets[index] : offsets[index + 1]]

    def unigram_entropy(self) -> float:
        """Return the entropy of the token frequencies, nats per token."""
        return self._entropy

    def histogram(self) -> np.ndarray:
        """Return how often each id occurs, (largest id + 1,) int64; reads every token."""
        return np.bincount(np.asarray(self._check_open(self._ids)))

    def verify(self, should_stop: Callable[[], None] = lambda: None) -> None:
        """Compare the hashes of all bytes with those of the build; raise `FileError`.

        Reads every token, about 1 GB/s on a core (SHA-256).
        """
        changed = [
            name
            for name, expected in self._sha256.items()
            if file_sha256(self.path / name, should_stop=should_stop) != expected
        ]
        if changed:
            raise FileError(f"{self.path}: damaged token store: {changed[0]} has changed")

    def close(self) -> None:
        """Close the files; may be called twice. Arrays that were returned stay valid."""
        self._ids = None
        self._marks = None
        self._offsets = None

    def __enter__(self) -> "TokenStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self, array: np.ndarray | None) -> np.ndarray:
        if array is None:
            raise ValueError(f"{self.path}: the token store is closed")
        return array


def _counts(kept: dict, name: str) -> Counts:
    bad = [Bad(name, line, what) for _, line, what in kept["first_bad"]]
    return Counts(**{**kept, "first_bad": bad})


def write_store(
    folder: Path, workdir: Path, spec: BuildSpec, name: str, callbacks: Callbacks
) -> None:
    """Write the files of the store whose key is `name`; raise `DataError` if it is empty."""
    built = tokenize.build(spec, folder, workdir, callbacks)
    total = Counts()
    for counts in built.file_counts:
        total.add(counts)
    # One source of several may have no document in this part; `build_corpus` checks the mixture.
    if not built.documents and not total.held_out:
        raise DataError(f"{spec.files[0].name}: {nothing_left(spec.config, spec.part, total)}")
    meta = {
        "version": VERSION,
        "key": name,
        "tokenizer": spec.encoding.tokenizer.fingerprint(),
        "drop_unknown": spec.encoding.drop_unknown,
        "part": spec.part,
        "dtype": spec.dtype.str,
        "documents": built.documents,
        "tokens": built.tokens,
        "unigram_entropy": entropy(built.histogram),
        "files": [
            [file.name, dataclasses.asdict(counts)]
            for file, counts in zip(spec.files, built.file_counts, strict=True)
        ],
        "sizes": {name: (folder / name).stat().st_size for name in built.sha256},
        "sha256": built.sha256,
    } | ({"marks": spec.encoding.marks} if spec.encoding.marks else {})
    meta["meta_sha256"] = meta_hash(meta)
    with cache.write_errors(folder):
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def meta_hash(meta: dict[str, Any]) -> str:
    """Return the hash of `meta.json` but for the hash itself."""
    rest = {name: value for name, value in meta.items() if name != "meta_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def nothing_left(config: Config, part: Part, counts: Counts) -> str:
    """Return why nothing that was read became a document with tokens."""
    if counts.tokenless:
        return f"no tokens: {all_of(counts.tokenless, 'documents consist')} of unknown characters"
    if counts.held_out:
        what = "holds out none" if part == "valid" else "leaves none to train on"
        return (
            f"valid_fraction {config.valid_fraction} of "
            f"{number_of(counts.held_out, 'documents')} {what}"
        )
    return f"no documents; {counts.bad} malformed: {counts.first_bad[0]}"


def entropy(histogram: np.ndarray) -> float:
    seen = histogram[histogram > 0]
    share = seen / seen.sum()
    return float(max(0.0, -math.fsum(share * np.log(share))))
