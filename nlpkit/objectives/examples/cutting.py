"""Cuts documents into the pieces of examples, in other ways than `contract.cut_documents`.

D documents.
"""

from __future__ import annotations

import numpy as np

from nlpkit.contracts.batch import Spans


def cut_stream(lengths: np.ndarray, size: int, after: tuple[int, ...]) -> Spans:
    """Return pieces of `size` tokens of all documents as one stream; each is followed by `after`.

    Only the last piece is shorter, and nothing is dropped.
    """
    framed = np.asarray(lengths, np.int64) + len(after)  # (D,)
    ends = np.cumsum(framed)
    total = int(ends[-1]) if len(ends) else 0
    start = np.arange(0, total, size)
    sizes = np.minimum(size, total - start)
    document = np.searchsorted(ends, start, side="right")
    start = start - (ends - framed)[document]
    return Spans(document, start, start + sizes, {}, (), after)


def cut_overlapping(lengths: np.ndarray, step: int, size: int, min_size: int) -> Spans:
    """Return pieces of `size` tokens, one every `step` tokens of a document.

    A document's last piece is shorter, but longer than what overlaps. A document of fewer than
    `min_size` tokens is dropped.
    """
    lengths = np.asarray(lengths, np.int64)
    count = np.maximum(1, -(-(lengths - (size - step)) // step))
    count[lengths < min_size] = 0
    document = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    start = (np.arange(len(document)) - np.repeat(first, count)) * step
    short = lengths < min_size
    dropped = {
        "documents_without_piece": int(short.sum()),
        "tokens_of_such_documents": int(lengths[short].sum()),
    }
    return Spans(document, start, np.minimum(start + size, lengths[document]), dropped)


def cut_sentences(lengths: np.ndarray, starts: np.ndarray, size: int, min_sentences: int) -> Spans:
    """Return pieces of whole sentences of a document: as many as fit in `size` tokens.

    `starts` are where sentences begin in all documents as one. A sentence of more than `size`
    tokens is dropped, and so are pieces of fewer than `min_sentences`, such as a single sentence
    between two long ones.
    """
    lengths = np.asarray(lengths, np.int64)
    ends_of_documents = np.cumsum(lengths)
    # A document begins with a sentence, also where its first characters gave no token.
    begins = np.union1d(starts, (ends_of_documents - lengths)[lengths > 0])
    stops = np.append(begins[1:], ends_of_documents[-1:])
    document = np.searchsorted(ends_of_documents, begins, side="right")
    last_of_document = np.searchsorted(document, document, side="right").tolist()
    fitting = np.searchsorted(stops, begins + size, side="right").tolist()
    first, found, few, long = 0, [], 0, 0
    while first < len(begins):
        last = min(fitting[first], last_of_document[first])
        if last == first:
            long, last = long + 1, first + 1
        elif last - first < min_sentences:
            few += last - first
        else:
            found.append((first, last))
        first = last
    chosen = np.array(found, np.int64).reshape(-1, 2)
    documents = document[chosen[:, 0]]
    before = (ends_of_documents - lengths)[documents]
    dropped = {"sentences_too_long": long, "sentences_without_another": few}
    return Spans(
        documents, begins[chosen[:, 0]] - before, stops[chosen[:, 1] - 1] - before, dropped
    )
