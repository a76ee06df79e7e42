"""Negatives: other pieces of the same data that an example is made with, such as NSP's false next.

A negative comes from other documents than the piece. It is drawn as often as an epoch has it, with
the random numbers of the example, so it depends on (seed, epoch, piece) as the example does, and
not on the workers or processes that make it.

I pieces, D documents.
"""

import numpy as np

from nlpkit.contracts.batch import Spans
from nlpkit.errors import UsageError

_DRAWS = 32  # in vain, before the others are listed: where one document has nearly all pieces


class Negatives:
    """The pieces of a corpus, to draw from."""

    def __init__(self, pieces: Spans, lengths: np.ndarray, weights: np.ndarray, what: str):
        """Take the pieces of documents of `lengths` (D,), each with its weight (I,).

        Raises:
            UsageError: a piece has no other document; `what` says which data these are.
        """
        self.first = pieces.document  # (I,) the first document of each piece, and the last
        self.last = _last_documents(pieces, lengths)
        self.weights = weights
        self.total = np.cumsum(weights)  # (I,)
        alone = (self.last >= self.first.max()) & (self.first <= self.last.min())
        if alone.any():
            raise UsageError(
                f"objective: an example is made of pieces of several documents, so {what} needs at "
                "least two documents with examples, and no example that runs through all of them"
            )

    def draw(self, piece: int, count: int, rng: np.random.Generator) -> list[int]:
        """Return `count` pieces from other documents than `piece`; one may be there twice."""
        return [self._one(piece, rng) for _ in range(count)]

    def _one(self, piece: int, rng: np.random.Generator) -> int:
        for _ in range(_DRAWS):
            negative = _pick(self.total, rng)
            if self.last[negative] < self.first[piece] or self.first[negative] > self.last[piece]:
                return negative
        others = (self.last < self.first[piece]) | (self.first > self.last[piece])
        return _pick(np.cumsum(np.where(others, self.weights, 0.0)), rng)


def _pick(total: np.ndarray, rng: np.random.Generator) -> int:
    """Return an index, drawn by the weights whose running sum is `total` (I,)."""
    index = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
    # The product may be rounded up to the whole sum.
    return min(index, int(np.searchsorted(total, total[-1])))


def _last_documents(pieces: Spans, lengths: np.ndarray) -> np.ndarray:
    """Return the document (I,) in which each piece ends; it may run on into the next ones."""
    framed = np.asarray(lengths, np.int64) + len(pieces.before) + len(pieces.after)
    ends = np.cumsum(framed)
    # `stop` counts from the first token of the frame of the piece's first document.
    stop = (ends - framed)[pieces.document] + pieces.stop
    return np.searchsorted(ends, stop - 1, side="right")
