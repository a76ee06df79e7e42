"""Ranks the documents of an `Index` for queries, term at a time; ties are in document order.

The ranking is exact. A `Weighting` computes the impacts of a term on the scores of documents. They
are computed for the first query with the term, and cached.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nlpkit.score.search.inverted_index import Index

_ROWS = 64  # see `_select_best`


class Weighting(Protocol):
    """A scoring formula: score = Σ weight(term in query) · impact(term, document)."""

    parameters: dict[str, str | float | None]  # those that change the scores
    signed: bool  # whether a word can lower the score of a document that contains it

    @property
    def tag(self) -> str:
        """The parameters in short form, without white space."""

    def impacts(self, term: int) -> np.ndarray:
        """Return the impact on each document with the term, minus `absent`: (df,) float64."""

    def absent(self, term: int) -> float:
        """Return the impact of the term on a document without it."""

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the weight of each term of a query, from the counts of the terms."""


class Hit(NamedTuple):
    """The index of a document, and its score."""

    document: int
    score: float


class Ranker:
    """Ranks the documents of an index; caches the impacts of terms."""

    def __init__(self, index: Index, weighting: Weighting):
        self.index = index
        self.weighting = weighting
        self._impacts: dict[int, np.ndarray] = {}
        self._scores = np.zeros(len(index.ids))

    def known(self, words: Sequence[str]) -> dict[int, int]:
        """Return the counts of the terms of a query that are in the index, in order."""
        terms = self.index.terms
        return Counter(terms[word] for word in words if word in terms)

    def top(self, words: Sequence[str], most: int) -> list[Hit]:
        """Return at most `most` documents with a word of the query, best first.

        Documents with scores of 0 or below are left out, except if `signed`. Documents with equal
        scores are in document order.
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
        chosen = _select_best(scores, most, lowest, constant)
        totals = scores[chosen] + constant
        order = np.lexsort((chosen, -totals))[:most]
        return [Hit(int(chosen[i]), float(totals[i])) for i in order]

    def scores(self, words: Sequence[str]) -> np.ndarray:
        """Return the score of every document: (N,) float64."""
        scores = np.zeros(len(self.index.ids))
        return scores + self._add(self.known(words), scores)

    def _add(self, counts: dict[int, int], scores: np.ndarray) -> float:
        """Add the impacts of the terms to `scores`; return the sum that every document gets."""
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
        """Return the impacts of a term for its postings, or for all documents if most have it."""
        impacts = self._impacts.get(term)
        if impacts is None:
            impacts = self.weighting.impacts(term)
            if 2 * len(impacts) > len(self._scores) > len(impacts):
                full = np.zeros(len(self._scores))
                full[self.index.documents[self.index.postings(term)]] = impacts
                impacts = full
            self._impacts[term] = impacts
        return impacts

    def _holding(self, terms: dict[int, int]) -> np.ndarray:
        """Return which documents contain one of the terms: (N,) bool."""
        holds = np.zeros(len(self._scores), dtype=bool)
        for term in terms:
            holds[self.index.documents[self.index.postings(term)]] = True
        return holds


def _select_best(scores: np.ndarray, most: int, lowest: float, constant: float) -> np.ndarray:
    """Return unordered documents with scores of at least `lowest`, including the `most` best.

    The k-th greatest maximum of disjoint groups is a lower bound of the k-th greatest score. It
    needs one pass, and few documents are above it.
    """
    rows = min(_ROWS, len(scores) // (4 * most))
    if rows > 1:
        width = len(scores) // rows
        maxima = scores[: rows * width].reshape(rows, width).max(axis=0)
        bound = float(np.partition(maxima, width - most)[width - most])
        if bound > lowest:
            # Lowered by the possible rounding error of adding the constant.
            lowest = max(lowest, bound - 2 * float(np.spacing(abs(bound) + abs(constant))))
    return np.flatnonzero(scores >= lowest)
