"""The top words of documents by TF-IDF, or documents ranked for queries.

Without QUERIES: the words of each document with the highest weight, --top of them, as tsv
(document, rank, word, weight) or JSON. With QUERIES: documents ranked, and scored with --qrels.
DOCS, QUERIES, what goes where and how ties are told apart: as in `nlpkit score bm25`.

N documents, df of them with the word, tf times in a document of so many words, qtf in the query:
  plain       (tf / length) * ln(N / (df + 1))
  unsmoothed  (tf / length) * ln(N / df)
  sublinear   (1 + ln tf) * ln(N / df)
  sklearn     tf * (ln((1 + N) / (1 + df)) + 1), divided by the Euclidean norm of the document
A document's score is the sum over the query's words, each qtf times; for sklearn it is the cosine,
as scikit-learn's TfidfVectorizer makes it.

The idf of plain is 0 for a word that all documents but one hold, negative for one in all of them;
there, documents that hold a word of the query are ranked whatever their score, else above 0 only.
"""

import argparse
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nlpkit.score.search import command
from nlpkit.score.search.inverted_index import Index

VARIANTS = ("plain", "unsmoothed", "sublinear", "sklearn")
_COLUMN = {"plain": "length", "unsmoothed": "length", "sublinear": "tf part", "sklearn": "norm"}


class Weighting:
    """TF-IDF in one of `VARIANTS`."""

    def __init__(self, index: Index, variant: str = "plain"):
        self._index = index
        self._variant = variant
        self.signed = variant == "plain"
        self.columns = ("idf", _COLUMN[variant])

    @property
    def parameters(self) -> dict[str, str | float | None]:
        """Return all that moves the scores, by name."""
        return {"variant": self._variant}

    @property
    def tag(self) -> str:
        """Return the same in short, for the last column of a TREC run."""
        return f"tfidf-{self._variant}"

    def impacts(self, term: int) -> np.ndarray:
        """Return the tf-idf of the term in each document that holds it: (df,) float64."""
        span = self._index.postings(term)
        counts = self._index.counts[span]
        if self._variant == "sublinear":
            return (1 + np.log(counts)) * float(self._idf[term])
        return counts * float(self._idf[term]) / self._sizes[self._index.documents[span]]

    def absent(self, term: int) -> float:
        """Return 0: a document is not weighed by what it does not hold."""
        return 0.0

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the query's counts or, in `sklearn`, its normalised tf-idf."""
        if self._variant != "sklearn":
            return [float(n) for n in counts]
        values = [n * float(self._idf[term]) for term, n in zip(terms, counts, strict=True)]
        norm = math.sqrt(math.fsum(v * v for v in values))
        return [v / norm for v in values]

    def parts(self, term: int, document: int) -> tuple[float, ...]:
        """Return the idf, and what the count is divided by or, in `sublinear`, becomes."""
        idf = float(self._idf[term])
        if self._variant != "sublinear":
            return idf, float(self._sizes[document])
        count = self._index.count(term, document)
        return idf, 1 + math.log(count) if count else 0.0

    @cached_property
    def _idf(self) -> np.ndarray:
        """Return the idf of every term: (V,)."""
        N, df = len(self._index.ids), self._index.frequencies
        if self._variant == "plain":
            return np.log(N / (df + 1))
        if self._variant in ("unsmoothed", "sublinear"):
            return np.log(N / df)
        return np.log((1 + N) / (1 + df)) + 1

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Return each document's length in words or, in `sklearn`, its norm: (N,) float64."""
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


def run(arguments: argparse.Namespace) -> float | None:
    """Print top words or rankings or, with --qrels, measures; return the first measure then."""
    return command.run(arguments, "tfidf", lambda index: Weighting(index, arguments.variant))
