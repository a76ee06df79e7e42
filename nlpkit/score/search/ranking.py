"""Queries -> the best documents, term at a time over an `Index`; exact, ties in document order.

A `Weighting` computes what a term adds to the score of a document. It is computed when a query
first needs it, and kept for the next queries.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nlpkit.score.search.inverted_index import Index

# Rows that are compared when a bound for the k-th best score is sought: see `_best`.
_ROWS = 64


class Weighting(Protocol):
    """How terms and documents are weighed: score = Σ weight(term in query) · impact(term, doc)."""

    @property
    def parameters(self) -> dict[str, str | float | None]:
        """Return all that moves the scores, by name."""

    @property
    def tag(self) -> str:
        """Return the same in short, without white space."""

    @property
    def signed(self) -> bool:
        """Return whether a word may lower the score of a document that holds it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of what `parts` returns."""

    def impacts(self, term: int) -> np.ndarray:
        """Return what the term adds to each document that holds it, beyond `absent`: float64."""

    def absent(self, term: int) -> float:
        """Return what the term adds to a document that does not hold it."""

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the query's factor of each of its terms, from how often it has them."""

    def parts(self, term: int, document: int) -> tuple[float, ...]:
        """Return the numbers from which an impact is made, for `--explain`."""


class Hit(NamedTuple):
    """A document by its number, and its score."""

    document: int
    score: float


class Part(NamedTuple):
    """What one term of a query adds to the score of one document."""

    term: str
    in_query: int
    weight: float
    in_document: int
    frequency: int  # documents that hold the term
    parts: tuple[float, ...]
    contribution: float


class Ranker:
    """Ranks the documents of an index; keeps the impacts of the terms of earlier queries."""

    def __init__(self, index: Index, weighting: Weighting):
        self.index = index
        self.weighting = weighting
        self._impacts: dict[int, np.ndarray] = {}
        self._scores = np.zeros(len(index.ids))

    def known(self, words: Sequence[str]) -> dict[int, int]:
        """Return the terms of a query that some document holds, with their counts, in order."""
        terms = self.index.terms
        return Counter(terms[word] for word in words if word in terms)

    def top(self, words: Sequence[str], most: int) -> list[Hit]:
        """Return at most `most` documents that hold a word of the query, best first.

        Scores of 0 or below are left out, unless words can lower a score (`signed`).
        Of equal scores the earlier document comes first.
        """
        counts = self.known(words)
        if not counts or most < 1:
            return []
        scores = self._scores
        scores[:] = 0.0
        constant = self._add(counts, scores)
        if self.weighting.signed:
            scores[~self._holding(counts)] = -np.inf
            lowest = np.finfo(np.float64).min
        else:
            lowest = np.nextafter(0.0, 1.0)
        chosen = _best(scores, most, lowest, constant)
        totals = scores[chosen] + constant
        order = np.lexsort((chosen, -totals))[:most]
        return [Hit(int(chosen[i]), float(totals[i])) for i in order]

    def scores(self, words: Sequence[str]) -> np.ndarray:
        """Return the score of every document: (N,) float64."""
        scores = np.zeros(len(self.index.ids))
        return scores + self._add(self.known(words), scores)

    def explain(self, words: Sequence[str], document: int) -> list[Part]:
        """Return what each term of the query that is known adds; the sum is the score."""
        counts = self.known(words)
        weights = self.weighting.weights([*counts], [*counts.values()])
        names = {term: word for word in words if (term := self.index.terms.get(word)) is not None}
        found = []
        for (term, in_query), weight in zip(counts.items(), weights, strict=True):
            held = self.index.count(term, document)
            impact = self.weighting.absent(term)
            if held:
                span = self.index.postings(term)
                at = np.searchsorted(self.index.documents[span], document)
                impact += float(self.weighting.impacts(term)[at])
            frequency = int(self.index.frequencies[term])
            parts = self.weighting.parts(term, document)
            contribution = weight * impact
            found.append(Part(names[term], in_query, weight, held, frequency, parts, contribution))
        return found

    def _add(self, counts: dict[int, int], scores: np.ndarray) -> float:
        """Add what the terms give to `scores`; return what they give to every document."""
        constant = 0.0
        weights = self.weighting.weights([*counts], [*counts.values()])
        for term, weight in zip(counts, weights, strict=True):
            impacts = self._impacts_of(term)
            if weight != 1.0:
                impacts = impacts * weight
            if len(impacts) == len(scores):
                scores += impacts
            else:
                np.add.at(scores, self.index.documents[self.index.postings(term)], impacts)
            constant += weight * self.weighting.absent(term)
        return constant

    def _impacts_of(self, term: int) -> np.ndarray:
        """Return a term's impacts, one a posting or, if most documents hold it, one a document."""
        found = self._impacts.get(term)
        if found is None:
            found = self.weighting.impacts(term)
            if 2 * len(found) > len(self._scores) > len(found):
                full = np.zeros(len(self._scores))
                full[self.index.documents[self.index.postings(term)]] = found
                found = full
            self._impacts[term] = found
        return found

    def _holding(self, terms: dict[int, int]) -> np.ndarray:
        """Return which documents hold one of the terms: (N,) bool."""
        holds = np.zeros(len(self._scores), dtype=bool)
        for term in terms:
            holds[self.index.documents[self.index.postings(term)]] = True
        return holds


def _best(scores: np.ndarray, most: int, lowest: float, constant: float) -> np.ndarray:
    """Return documents of at least `lowest`, unordered, the `most` best and their ties among them.

    The k-th greatest of the maxima of k or more disjoint groups is a lower bound of the k-th
    greatest score; it costs one pass, and few documents are above it.
    """
    rows = min(_ROWS, len(scores) // (4 * most))
    if rows > 1:
        width = len(scores) // rows
        maxima = scores[: rows * width].reshape(rows, width).max(axis=0)
        bound = float(np.partition(maxima, width - most)[width - most])
        if bound > lowest:
            # Below it by what adding the constant may round away.
            lowest = max(lowest, bound - 2 * float(np.spacing(abs(bound) + abs(constant))))
    return np.flatnonzero(scores >= lowest)
