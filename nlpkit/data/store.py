"""Documents -> token ids, made once, kept on disk and memory-mapped.

A store is a directory named by a hash of everything that its content depends on: the bytes of the
files, how they are read, the tokenizer. It appears whole or not at all; a second start verifies
and opens it. `token_store` says what is in it.
"""

import bisect
import hashlib
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nlpkit.contracts.batch import bit
from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.contracts.tokenizer import Aligned
from nlpkit.data import cache
from nlpkit.data.cache import Callbacks
from nlpkit.data.documents import rows_in
from nlpkit.data.files import Input
from nlpkit.data.lines import shown
from nlpkit.data.settings import Config, Part
from nlpkit.data.token_store import VERSION, TokenStore, entropy, nothing_left, write_store
from nlpkit.data.tokenize import BuildSpec, Encoding
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of

_WARN_SHARE = 0.01
# Part of the key of a store with marks: change it when the same text would get other ones.
MARKS_VERSION = 1


class Corpus:
    """Several stores with weights, documents numbered through; drawing by weight is the loader's.

    `weights` (S,) float64 are as in the recipe, not normalised; `starts` (S + 1,) int64 are the
    numbers of each store's first document.
    """

    NOUN = "documents"
    cut: Mapping[str, int] = MappingProxyType({})  # only rows of tasks are cut

    def __init__(self, parts: Sequence[tuple[TokenStore, float]]):
        if not parts:
            raise ValueError("a corpus needs a store")
        self.stores = [store for store, _ in parts]
        self.weights = np.array([weight for _, weight in parts], np.float64)
        self.starts = np.cumsum([0, *map(len, self.stores)], dtype=np.int64)
        self.lengths = np.concatenate([store.lengths for store in self.stores])
        self.tokens = sum(store.tokens for store in self.stores)
        self._starts: list[int] = self.starts.tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def source_of(self, index: int) -> int:
        """Return the number of the store that has document `index`."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return bisect.bisect_right(self._starts, index) - 1

    def document(self, index: int) -> np.ndarray:
        """Return the ids of a document, (T,), a read-only view of its file."""
        source = self.source_of(index)
        return self.stores[source].document(index - self._starts[source])

    def marks(self, index: int) -> np.ndarray:
        """Return the marks of a document's tokens, (T,) uint8."""
        source = self.source_of(index)
        return self.stores[source].document_marks(index - self._starts[source])

    def places(self, name: str) -> np.ndarray:
        """Return where tokens with the mark `name` are in all documents as one; reads all marks."""
        before = np.cumsum([0, *(store.tokens for store in self.stores)])
        found = [
            store.places(name) + start for store, start in zip(self.stores, before, strict=False)
        ]
        return np.concatenate(found)

    def content(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return the ids of a piece of document `index`."""
        return self.document(index)[start:stop]

    def unigram_entropy(self, without: int | None = None) -> float:
        """Return the entropy of the token frequencies of all stores together, nats per token.

        Reads every token. The token `without` is not counted.
        """
        histograms = [store.histogram() for store in self.stores]
        total = np.zeros(max(map(len, histograms)), np.int64)
        for histogram in histograms:
            total[: len(histogram)] += histogram
        if without is not None:
            total[without : without + 1] = 0
        return entropy(total)

    @property
    def counts(self) -> Counts:
        """What was read and left out, over all stores."""
        total = Counts()
        for store in self.stores:
            total.add(store.counts)
        return total

    @property
    def fingerprint(self) -> str:
        """A hash of the stores, their order and their weights."""
        text = json.dumps(
            [[s.fingerprint, float(w)] for s, w in zip(self.stores, self.weights, strict=True)]
        )
        return hashlib.sha256(text.encode()).hexdigest()


def build_corpus(
    inputs: Sequence[Input],
    config: Config,
    encoding: Encoding,
    *,
    cache_dir: Path,
    part: Part = "all",
    callbacks: Callbacks | None = None,
) -> Corpus:
    """Return the corpus of a mixture, a store for each input; arguments and errors as for `build`.

    An input may be without documents where `part` leaves it none, but not all of them.
    """
    more: Any = {"cache_dir": cache_dir, "part": part, "callbacks": callbacks}
    parts = [(build(e.files, config, encoding, **more), e.weight) for e in inputs]
    corpus = Corpus(parts)
    if not len(corpus):
        name = inputs[0].files[0].name if len(inputs) == 1 else "data.train"
        raise DataError(f"{name}: {nothing_left(config, part, corpus.counts)}")
    unknown = corpus.counts.unknown
    tokens, remark = corpus.tokens, ""
    if encoding.drop_unknown:
        tokens, remark = tokens + unknown, " and left out"
    warning = unknown_warning(inputs, unknown, tokens, remark)
    if warning and callbacks:
        callbacks.warn(warning)
    return corpus


def build(
    files: Sequence[TextFile],
    config: Config,
    encoding: Encoding,
    *,
    cache_dir: Path,
    part: Part = "all",
    callbacks: Callbacks | None = None,
) -> TokenStore:
    """Return the store of these files, in order: from the cache, or tokenised now.

    Unknown tokens that are left out are counted. `part` takes the share that
    `config.valid_fraction` leaves for training or holds out. Raise `UsageError` if marks are wanted
    and the tokenizer cannot place its tokens. Raise `DataError` at the first
    malformed row in file order (`file:line: what`), or if there is no document; `FileError` when a
    file or the cache cannot be read or written. A damaged store is built again, which is noted.
    Only a store of a `part` may be empty.
    """
    callbacks = callbacks or Callbacks()
    files = tuple(files)
    rows = tuple(rows_in(file, config) for file in files)
    encoding = replace(encoding, marks=tuple(sorted({*encoding.marks}, key=bit)))
    spec = BuildSpec(files, rows, config, part, encoding)
    if encoding.marks and not isinstance(encoding.tokenizer, Aligned):
        raise UsageError(
            f"objective: it needs marks ({', '.join(encoding.marks)}), and this kind of tokenizer "
            "does not say which characters its tokens stand for; use another kind"
        )
    before = [cache.signature(file) for file in files]
    key = _key(spec, cache_dir / "hashes", callbacks)
    path = cache_dir / "stores" / key[:32]
    read = shown([each.name for file in files for each in file.parts])
    if (store := _open(path, key, files, callbacks)) is not None:
        callbacks.note(f"data: {read}: {_summary(store, encoding)}, from the cache")
        return store
    with cache.scratch(path.parent) as workdir:
        built = workdir / "store"
        with cache.write_errors(built):
            built.mkdir()
        write_store(built, workdir, spec, key, callbacks)
        for file, then in zip(files, before, strict=True):
            if cache.signature(file) != then:
                raise FileError(f"{file.name}: changed while it was being read; start again")
        cache.publish(built, path, lambda: _open(path, key, files, Callbacks()) is not None)
    store = TokenStore(path, [file.name for file in files])
    callbacks.note(f"data: {read}: {_summary(store, encoding)}, tokenised")
    return store


def _open(
    path: Path, key: str, files: Sequence[TextFile], callbacks: Callbacks
) -> TokenStore | None:
    """Return the store in the cache; None if there is none, or a damaged one, which is noted."""
    if not path.exists():
        return None
    try:
        store = TokenStore(path, [file.name for file in files])
        if store.fingerprint != key:
            raise FileError(f"{path}: another store has been put there")
        store.verify(callbacks.should_stop)
    except FileError as error:
        callbacks.note(f"data: {error}; building it again")
        return None
    return store


def _summary(store: TokenStore, encoding: Encoding) -> str:
    unknown = ""
    if number := store.counts.unknown:
        what = "more left out as unknown" if encoding.drop_unknown else "of them unknown"
        unknown = f", {number:,} {what}"
    return f"{number_of(len(store), 'documents')}, {number_of(store.tokens, 'tokens')}{unknown}"


def _key(spec: BuildSpec, memory: Path, callbacks: Callbacks) -> str:
    """Return the hash of everything that the store's content depends on."""
    config, encoding = spec.config, spec.encoding
    content = [cache.content_hash(file, memory, callbacks.should_stop) for file in spec.files]
    marks = {"marks": [MARKS_VERSION, *encoding.marks]} if encoding.marks else {}
    text = json.dumps(
        marks
        | {
            "version": VERSION,
            "files": [[sha, r.identity()] for sha, r in zip(content, spec.rows, strict=True)],
            "gzip": [file.gzip for file in spec.files],
            "on_error": config.on_error,
            "part": [spec.part, config.valid_fraction if spec.part != "all" else 0.0],
            "tokenizer": encoding.tokenizer.fingerprint(),
            "dtype": spec.dtype.name,
            "drop_unknown": encoding.drop_unknown,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def unknown_warning(
    inputs: Iterable[Input], unknown: int, tokens: int, remark: str = ""
) -> str | None:
    """Return a warning if one in a hundred tokens or more is unknown; `remark` says more of them.

    `tokens` are all, also those that were left out.
    """
    if unknown == 0 or unknown < _WARN_SHARE * tokens:
        return None
    names = shown([file.name for entry in inputs for file in entry.files])
    return (
        f"{names}: {unknown:,} of {number_of(tokens, 'tokens')} ({100 * unknown / tokens:.1f} %) "
        f"{'is' if unknown == 1 else 'are'} unknown"
        f"{remark}; a larger vocabulary knows their characters: set tokenizer.kind and "
        "tokenizer.vocab_size (with init_from, kind cpm_ant grows that of the checkpoint)"
    )
