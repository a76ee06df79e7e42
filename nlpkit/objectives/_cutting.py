"""Cuts documents into the pieces of examples, in other ways than `contract.cut_documents`.

D documents.
"""

from __future__ import annotations

import numpy as np

from nlpkit.objectives.contract import Spans


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
