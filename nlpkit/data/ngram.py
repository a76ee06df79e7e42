"""N-grams of tokens with modified Kneser-Ney smoothing (Chen & Goodman 1999), interpolated.

A baseline that knows the N - 1 tokens before each token, and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_USUAL = np.array([0.0, 0.5, 1.0, 1.5])  # discounts where the text is too small to estimate them


@dataclass
class _Order:
    """The n-grams of one length, G in all, sorted by the number of their first n - 1 tokens."""

    keys: np.ndarray  # (G,) int64, (number of the context) * (V + 1) + last token
    kept: np.ndarray  # (G,) the discounted count over the sum of its context
    rest: np.ndarray  # (contexts,) the share of each context that the lower order has
    seen: np.ndarray  # (contexts,) bool, whether anything follows the context

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of each n-gram, -1 for one that is not known."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)


class NGram:
    """A model of order N; documents are independent, and their ends are not predicted.

    Before each document stands a token of its own, V, so that its first token has a context, too.
    """

    def __init__(self, order: int, vocab_size: int):
        self.order, self.vocab_size = order, vocab_size
        self._orders: list[_Order] = []

    def fit(self, documents: Iterable[np.ndarray]) -> "NGram":
        """Count the n-grams of the documents, each (T,) of ids; return the model.

        An n-gram shorter than N counts the tokens that were seen before it, not its occurrences;
        one at the beginning of a document, before which nothing can stand, its occurrences.
        """
        text, before = self._join(documents)
        keys, numbers = [], []  # of each order: its n-grams, and which of them ends at each token
        context = np.zeros(len(text), np.int64)
        for n in range(self.order):
            whole = before >= n
            unique, inverse = np.unique(self._keys(context, text)[whole], return_inverse=True)
            number = np.full(len(text), -1)
            number[whole] = inverse
            keys.append(unique)
            numbers.append(number)
            context = np.concatenate([[-1], number[:-1]])
        contexts = [1, *map(len, keys)]
        for n in range(self.order):
            occurrences = numbers[n][before == n if n + 1 < self.order else before >= n]
            counts = np.bincount(occurrences, minlength=len(keys[n]))
            if n + 1 < self.order:
                number, first = np.unique(numbers[n + 1], return_index=True)
                counts += np.bincount(numbers[n][first[number >= 0]], minlength=len(keys[n]))
            self._orders.append(_estimate(keys[n], counts, contexts[n], self.vocab_size))
        return self

    def nats(self, documents: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return -log p of each token given those before it, (T,) for each document of T ids."""
        text, before = self._join(documents)
        probability = np.full(len(text), 1 / self.vocab_size)
        context = np.zeros(len(text), np.int64)
        for n, order in enumerate(self._orders):
            known = (before >= n) & (context >= 0)
            number = np.full(len(text), -1)
            number[known] = order.find(self._keys(context, text)[known])
            use = np.flatnonzero(known)
            use = use[order.seen[context[use]]]
            kept = np.where(number[use] >= 0, order.kept[number[use]], 0.0)
            probability[use] = kept + order.rest[context[use]] * probability[use]
            context = np.concatenate([[-1], number[:-1]])
        ends = np.cumsum([len(each) for each in documents])
        return np.split(-np.log(probability[before > 0]), ends[:-1])

    def _keys(self, context: np.ndarray, text: np.ndarray) -> np.ndarray:
        return context * (self.vocab_size + 1) + text

    def _join(self, documents: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents as one, each after a token V, and each token's place in its own."""
        start, none = np.array([self.vocab_size]), np.zeros(0, np.int64)
        parts = [np.concatenate([start, document]) for document in documents]
        before = [np.arange(len(part)) for part in parts]
        return np.concatenate([none, *parts]), np.concatenate([none, *before])


def _estimate(keys: np.ndarray, counts: np.ndarray, contexts: int, vocab_size: int) -> _Order:
    """Discount the counts of one order; see section 4.1.6, equation 26."""
    counts = np.where(keys % (vocab_size + 1) == vocab_size, 0, counts)  # never predicted
    discounts = _choose_discounts(counts)
    removed = discounts[np.minimum(counts, 3)]
    context = keys // (vocab_size + 1)
    total = np.bincount(context, counts, contexts)
    seen = total > 0
    total[~seen] = 1
    kept = np.maximum(counts - removed, 0) / total[context]
    return _Order(keys, kept, np.bincount(context, removed, contexts) / total, seen)


def _choose_discounts(counts: np.ndarray) -> np.ndarray:
    """Return D1, D2 and D3+ behind a 0, from how many n-grams occur 1, 2, 3 and 4 times."""
    n = np.bincount(counts, minlength=5)[:5].astype(np.float64)
    if not n[1:].all():
        return _USUAL
    share = n[1] / (n[1] + 2 * n[2])
    k = np.arange(1, 4)
    found = np.concatenate([[0.0], k - (k + 1) * share * n[2:] / n[1:4]])
    return found if ((found >= 0) & (found <= np.arange(4))).all() else _USUAL
