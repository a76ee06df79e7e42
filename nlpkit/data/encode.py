"""Documents -> ids, and the marks beside them, many documents at once."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from nlpkit.contracts.reader import Counts
from nlpkit.contracts.tokenizer import Aligned, Tokenizer
from nlpkit.data.corpus import Document
from nlpkit.data.marks import of_text

_BATCH_CHARACTERS = 1 << 18
_BATCH_DOCUMENTS = 1 << 12


class Encoded(NamedTuple):
    """The N tokens of the D documents that have any."""

    ids: np.ndarray  # (N,) int64
    marks: np.ndarray  # (N,) uint8, or nothing where none are wanted
    sizes: np.ndarray  # (D,) int64


def batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Yield the documents in lists, each long enough for one call of the tokenizer."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += sum(map(len, document.texts))
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encode(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    counts: Counts,
    *,
    drop_unknown: bool,
    marks: Sequence[str],
    by_line: bool = False,
) -> Encoded:
    """Return the tokens of all documents; unknown ones and documents without any are counted.

    With the mark `second_side`, a pair of which one text has no tokens has none, either. With
    `by_line` each line is a sentence.
    """
    texts = [text for document in documents for text in document.texts]
    owner = np.repeat(np.arange(len(documents)), [len(d.texts) for d in documents])
    if marks:
        encoded, marked = _with_marks(texts, owner, tokenizer, marks, by_line)
    else:
        encoded, marked = tokenizer.encode_batch(texts), np.empty(0, np.uint8)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), np.int64, int(lengths.sum()))
    halves = np.unique(owner[lengths == 0])
    owner = np.repeat(owner, lengths)  # the document of each token
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer gave ids {ids.min()} to {ids.max()}, "
            f"outside its vocabulary of {tokenizer.vocab_size}"
        )
    if tokenizer.unk_id is not None:
        known = ids != tokenizer.unk_id
        counts.unknown += int((~known).sum())
        if drop_unknown:
            ids, owner = ids[known], owner[known]
            marked = marked[known] if marks else marked
    if "second_side" in marks:  # one text without tokens leaves no pair
        whole = ~np.isin(owner, halves)
        ids, owner, marked = ids[whole], owner[whole], marked[whole]
    sizes = np.bincount(owner, minlength=len(documents))
    counts.tokenless += int((sizes == 0).sum())
    return Encoded(ids, marked, sizes[sizes > 0].astype(np.int64))


def _with_marks(
    texts: list[str],
    owner: np.ndarray,
    tokenizer: Tokenizer,
    names: Sequence[str],
    by_line: bool,
) -> tuple[list[list[int]], np.ndarray]:
    """Return the ids of each text, and the marks (N,) uint8 of all their tokens."""
    assert isinstance(tokenizer, Aligned)  # `store.build` has checked it
    found = tokenizer.encode_with_offsets(texts)
    is_second = np.diff(owner, prepend=-1) == 0
    marks = [
        of_text(text, offsets, names, bool(second), by_line)
        for text, (_, offsets), second in zip(texts, found, is_second, strict=True)
    ]
    return [ids for ids, _ in found], np.concatenate([np.empty(0, np.uint8), *marks])
