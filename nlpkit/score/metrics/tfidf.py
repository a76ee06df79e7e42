"""Rank documents for queries with TF-IDF; with --qrels, score that ranking.

DOCS, QUERIES, what goes where and how ties are told apart: as in `nlpkit score bm25`.

N documents, df of them with the word, tf times in a document of so many words, qtf in the query:
  plain     Σ qtf * (tf / length) * ln(N / (df + 1))
  sklearn   cosine of the query and the document as scikit-learn's TfidfVectorizer makes them:
            tf * (ln((1 + N) / (1 + df)) + 1), divided by its length in the Euclidean norm

The idf of plain is 0 for a word that all documents but one hold, negative for one in all of them;
there, documents that hold a word of the query are ranked whatever their score, else above 0 only.
"""

import argparse
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nlpkit.score.search import command
from nlpkit.score.search.inverted_index import Index

VARIANTS = ("plain", "sklearn")


class Weighting:
    """TF-IDF in one of `VARIANTS`."""

    def __init__(self, index: Index, variant: str = "plain"):
        self._index = index
        self._variant = variant
        self.signed = variant == "plain"
        self.columns = ("idf", "length" if variant == "plain" else "norm")

    @property
    def parameters(self) -> dict[str, Any]:
        """Return all that moves the scores, by name."""
        return {"variant": self._variant}

    @property
    def tag(self) -> str:
        """Return the same in short, for the last column of a TREC run."""
        return f"tfidf-{self._variant}"

    def impacts(self, term: int) -> np.ndarray:
        """Return the tf-idf of the term in each document that holds it: (df,) float64."""
        span = self._index.postings(term)
        sizes = self._sizes[self._index.documents[span]]
        return self._index.counts[span] * float(self._idf[term]) / sizes

    def absent(self, term: int) -> float:
        """Return 0: a document is not weighed by what it does not hold."""
        return 0.0

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the query's counts or, in `sklearn`, its normalised tf-idf."""
        if self._variant == "plain":
            return [float(n) for n in counts]
        values = [n * float(self._idf[term]) for term, n in zip(terms, counts, strict=True)]
        norm = math.sqrt(math.fsum(v * v for v in values))
        return [v / norm for v in values]

    def parts(self, term: int, document: int) -> tuple[float, ...]:
        """Return the idf, and what the document's counts are divided by."""
        return float(self._idf[term]), float(self._sizes[document])

    @cached_property
    def _idf(self) -> np.ndarray:
        """Return the idf of every term: (V,)."""
        N, df = len(self._index.ids), self._index.frequencies
        if self._variant == "plain":
            return np.log(N / (df + 1))
        return np.log((1 + N) / (1 + df)) + 1

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Return each document's length in words or, in `sklearn`, its norm: (N,) float64."""
        if self._variant == "plain":
            return self._index.lengths.astype(np.float64)
        values = self._index.counts * np.repeat(self._idf, self._index.frequencies)
        values *= values
        return np.sqrt(np.bincount(self._index.documents, values, len(self._index.ids)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nlpkit score tfidf`."""
    command.add_arguments(parser)
    formula = parser.add_argument_group("formula")
    formula.add_argument("--variant", choices=VARIANTS, default="plain", help="default: plain")


def run(arguments: argparse.Namespace) -> float | None:
    """Rank or, with --qrels, score: return the first measure then, else None."""
    return command.run(arguments, "tfidf", lambda index: Weighting(index, arguments.variant))
