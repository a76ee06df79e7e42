"""Find the top words of documents by TF-IDF, or rank documents for queries.

Without QUERIES it prints the --top words of each document with the highest weight, as tsv
(document, rank, word, weight) or JSON. With QUERIES it ranks documents. Files, output and the order
of equal scores are those of `nlpkit score bm25`.

N documents, df of them contain the word; it is tf times in a document and qtf times in the query;
length is the number of words of the document:
  plain       (tf / length) * ln(N / (df + 1))
  unsmoothed  (tf / length) * ln(N / df)
  sublinear   (1 + ln tf) * ln(N / df)
  sklearn     tf * (ln((1 + N) / (1 + df)) + 1), divided by the Euclidean norm of the document
The score of a document is the sum over the words of the query, each times qtf. For sklearn it is
the cosine of TfidfVectorizer of scikit-learn.

The idf of plain is 0 for a word that is in all documents except one, and negative for a word in all
documents. Therefore plain ranks all documents with a word of the query; the other variants rank
only documents with scores above 0.
"""

import argparse
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nlpkit.score.search import command
from nlpkit.score.search.inverted_index import Index

HAS_SCORE = False
VARIANTS = ("plain", "unsmoothed", "sublinear", "sklearn")


class Weighting:
    """TF-IDF in one of `VARIANTS`."""

    def __init__(self, index: Index, variant: str = "plain"):
        self._index = index
        self._variant = variant
        self.signed = variant == "plain"
        self.parameters: dict[str, str | float | None] = {"variant": variant}

    @property
    def tag(self) -> str:
        """The parameters in short form, for the last column of a TREC run."""
        return f"tfidf-{self._variant}"

    def impacts(self, term: int) -> np.ndarray:
        """Return the tf-idf of the term in each document that contains it: (df,) float64."""
        span = self._index.postings(term)
        counts = self._index.counts[span]
        if self._variant == "sublinear":
            return (1 + np.log(counts)) * float(self._idf[term])
        return counts * float(self._idf[term]) / self._sizes[self._index.documents[span]]

    def absent(self, term: int) -> float:
        """Return 0: a term that is not in a document adds nothing."""
        return 0.0

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the counts of the query, or for `sklearn` its normalised tf-idf."""
        if self._variant != "sklearn":
            return [float(n) for n in counts]
        values = [n * float(self._idf[term]) for term, n in zip(terms, counts, strict=True)]
        norm = math.sqrt(math.fsum(v * v for v in values))
        return [v / norm for v in values]

    @cached_property
    def _idf(self) -> np.ndarray:
        """The idf of every term: (V,)."""
        N, df = len(self._index.ids), self._index.frequencies
        if self._variant == "plain":
            return np.log(N / (df + 1))
        if self._variant in ("unsmoothed", "sublinear"):
            return np.log(N / df)
        return np.log((1 + N) / (1 + df)) + 1

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The length of each document in words, or for `sklearn` its norm: (N,) float64."""
        if self._variant != "sklearn":
            return self._index.lengths.astype(np.float64)
        values = self._index.counts * np.repeat(self._idf, self._index.frequencies)
        values *= values
        return np.sqrt(np.bincount(self._index.documents, values, len(self._index.ids)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nlpkit score tfidf`."""
    command.add_arguments(parser, top_words=True)
    formula = parser.add_argument_group("formula")
    formula.add_argument("--variant", choices=VARIANTS, default="plain", help="default: plain")


def run(arguments: argparse.Namespace) -> None:
    """Print top words, or a ranking."""
    command.run(arguments, "tfidf", lambda index: Weighting(index, arguments.variant))
