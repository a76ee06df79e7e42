"""Rank documents for queries with BM25.

DOCS and QUERIES have one text per line; its identifier is the line number. By the file's ending
they are jsonl (id, _id or docid; text or contents; title) or tsv (identifier, tab, text). .gz files
are unpacked; - is stdin. The index is built at each call, in memory.

The ranking is written to stdout, messages to stderr. Judge it with nlpkit score ir:
  nlpkit score bm25 DOCS QUERIES --top 1000 | nlpkit score ir QRELS -

Only documents with a word of the query and a score above 0 are ranked. With robertson-raw the idf
of frequent words is negative, and documents with negative scores are ranked, too. Documents with
equal scores are in the order of DOCS. trec_eval reads scores as float32. If two scores of a TREC
run are equal in float32, the second is lowered to the next float32, so that trec_eval keeps the
order.

K = k1 * (1 - b + b * length / mean length); N documents, df of them contain the word; tf is the
number of times that the word is in the document:
  lucene          log(1 + (N-df+0.5)/(df+0.5))        tf / (tf+K)
  robertson       log((N-df+0.5)/(df+0.5)), above 0   tf / (tf+K)
  robertson-raw   log((N-df+0.5)/(df+0.5))            (k1+1) tf / (tf+K)
  atire           log(N/df)                           (k1+1) tf / (tf+K)
  bm25l           log((N+1)/(df+0.5))                 (k1+1) (c+delta) / (k1+c+delta), c = k1 tf/K
  bm25+           log((N+1)/df)                       (k1+1) tf / (tf+K) + delta
The formulas are those of bm25s (Kamphuis et al. 2020): bm25l and bm25+ add delta for documents
without the word, too. robertson-raw does not change Robertson's idf. The weight of a word that is
in the query qtf times is (k3+1) qtf / (k3+qtf); without --k3 it is qtf, with --k3 0 it is 1.
"""

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nlpkit.errors import UsageError
from nlpkit.score.search import command
from nlpkit.score.search.inverted_index import Index

HAS_SCORE = False
VARIANTS = ("lucene", "robertson", "robertson-raw", "atire", "bm25l", "bm25+")
_WITH_DELTA = ("bm25l", "bm25+")
# As in bm25s for both variants; Lv and Zhai 2011 use 0.5 for BM25L and 1 for BM25+.
_DELTA = 0.5


class Settings(NamedTuple):
    """The formula and its parameters."""

    variant: str = "lucene"
    k1: float = 1.5
    b: float = 0.75
    k3: float | None = None
    delta: float | None = None  # None: 0.5 where the variant has one


class Weighting:
    """BM25 in one of `VARIANTS`; raise `UsageError` for parameters out of range."""

    def __init__(self, index: Index, settings: Settings):
        _check(settings)
        self._index = index
        self._variant, self._k1, b, self._k3, delta = settings
        self._delta = _DELTA if delta is None else delta
        self.signed = self._variant == "robertson-raw"
        # If the mean length is 0, there are no postings and the factors are not used.
        self._factors = 1 - b + b * (index.lengths / (index.mean_length or 1.0))  # (N,)
        self.parameters = settings._replace(delta=self._delta)._asdict()
        if self._variant not in _WITH_DELTA:
            del self.parameters["delta"]

    @property
    def tag(self) -> str:
        """The parameters in short form, for the last column of a TREC run."""
        values = [f"{n}={v:g}" for n, v in self.parameters.items() if isinstance(v, float | int)]
        return "-".join(["bm25", self._variant, *values])

    def impacts(self, term: int) -> np.ndarray:
        """Return idf times the tf part for each posting, minus `absent`: (df,) float64."""
        span = self._index.postings(term)
        factors = self._factors[self._index.documents[span]]
        part = self._part(self._index.counts[span].astype(np.float64), factors)
        return self._idf(term) * part - self.absent(term)

    def absent(self, term: int) -> float:
        """Return idf times the tf part for a document without the term."""
        if self._variant not in _WITH_DELTA:
            return 0.0
        return self._idf(term) * float(self._part(np.zeros(1), np.ones(1))[0])

    def weights(self, terms: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return (k3+1) qtf / (k3+qtf) for each term, or qtf if there is no k3."""
        k3 = self._k3
        return [float(n) if k3 is None else (k3 + 1) * n / (k3 + n) for n in counts]

    def _idf(self, term: int) -> float:
        N, df = len(self._index.ids), int(self._index.frequencies[term])
        odds = (N - df + 0.5) / (df + 0.5)
        match self._variant:
            case "lucene":
                return math.log(1 + odds)
            case "robertson":
                return math.log(max(1.0, odds))
            case "robertson-raw":
                return math.log(odds)
            case "atire":
                return math.log(N / df)
            case "bm25l":
                return math.log((N + 1) / (df + 0.5))
            case _:
                return math.log((N + 1) / df)

    def _part(self, tf: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Return the tf part of the formula; `factors` are the length factors of the documents."""
        k1 = self._k1
        if self._variant == "bm25l":
            c = tf / factors + self._delta
            return (k1 + 1) * c / (k1 + c)
        part = tf / (k1 * factors + tf)
        if self._variant in ("lucene", "robertson"):
            return part
        return (k1 + 1) * part + (self._delta if self._variant == "bm25+" else 0.0)


def _check(settings: Settings) -> None:
    variant, k1, b, k3, delta = settings
    for name, value in (("k1", k1), ("k3", k3), ("delta", delta)):
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"--{name} is {value:g}, must be a number of 0 or more")
    if not 0 <= b <= 1:
        raise UsageError(f"--b is {b:g}, must be between 0 and 1")
    if delta is not None and variant not in _WITH_DELTA:
        raise UsageError(f"--delta: only {' and '.join(_WITH_DELTA)} have one, not {variant}")
    if variant in _WITH_DELTA and k1 == 0:
        raise UsageError(f"--k1 is 0; {variant} needs a value above 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nlpkit score bm25`."""
    command.add_arguments(parser)
    formula = parser.add_argument_group("formula")
    formula.add_argument("--variant", choices=VARIANTS, default="lucene", help="default: lucene")
    formula.add_argument("--k1", type=float, default=1.5, help="default: 1.5")
    formula.add_argument("--b", type=float, default=0.75, help="default: 0.75")
    formula.add_argument("--k3", type=float, help="default: none, repeated words count each time")
    formula.add_argument("--delta", type=float, help="of bm25l and bm25+; default: 0.5")


def run(arguments: argparse.Namespace) -> None:
    """Print the ranking."""
    settings = Settings(*(vars(arguments)[name] for name in Settings._fields))
    _check(settings)  # before any file is read
    command.run(arguments, "bm25", lambda index: Weighting(index, settings))
