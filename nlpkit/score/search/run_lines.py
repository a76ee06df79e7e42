"""Rankings as text: TREC run lines, tsv, JSON; and the explanation of a score, term by term."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nlpkit.errors import DataError
from nlpkit.score.search.ranking import Part
from nlpkit.text_table import aligned

FORMATS = ("trec", "tsv", "json")


class Ranked(NamedTuple):
    """The ranking of one query."""

    query: str
    documents: list[str]
    scores: list[float]


Lines = Callable[[Ranked], str]


def choose_writer(form: str, tag: str, signature: str) -> Lines:
    """Return the function that writes a ranking in `form`, one of `FORMATS`."""
    if form == "trec":
        return lambda ranked: _write_trec(ranked, tag)
    return _write_tsv if form == "tsv" else lambda ranked: _write_json(ranked, signature)


def check_identifiers(form: str, path: str, identifiers: Iterable[str]) -> None:
    """Raise `DataError` for an identifier with characters that the format does not allow."""
    if form == "json":
        return
    bad = re.compile(r"\s" if form == "trec" else r"[\t\r\n]").search
    for key in identifiers:
        if bad(key):
            kind = "white space" if form == "trec" else "a tab or a line's end"
            raise DataError(f"{path}: identifier {key!r} has {kind} in it; use --format json")


def make_distinct(scores: Sequence[float]) -> list[float]:
    """Return descending scores; some are lowered, so that all are distinct in float32.

    trec_eval reads scores as float32 and sorts documents with equal scores by identifier.
    """
    distinct_scores = list(scores)
    singles = np.array(scores, dtype=np.float32)
    if bool((singles[1:] < singles[:-1]).all()):
        return distinct_scores
    before = np.float32(np.inf)
    for index, single in enumerate(singles):
        if not single < before:
            single = np.nextafter(before, np.float32(-np.inf))
            distinct_scores[index] = float(single)
        before = single
    return distinct_scores


def _write_trec(ranked: Ranked, tag: str) -> str:
    query = ranked.query
    rows = zip(ranked.documents, make_distinct(ranked.scores), strict=True)
    return "".join(f"{query} Q0 {d} {r} {s!r} {tag}\n" for r, (d, s) in enumerate(rows, 1))


def _write_tsv(ranked: Ranked) -> str:
    rows = zip(ranked.documents, ranked.scores, strict=True)
    return "".join(f"{ranked.query}\t{d}\t{r}\t{s!r}\n" for r, (d, s) in enumerate(rows, 1))


def _write_json(ranked: Ranked, signature: str) -> str:
    rows = zip(ranked.documents, ranked.scores, strict=True)
    results = [{"id": d, "rank": r, "score": s} for r, (d, s) in enumerate(rows, 1)]
    values = {"query": ranked.query, "signature": signature, "results": results}
    return json.dumps(values, ensure_ascii=False) + "\n"


def format_explanation(
    query: str, document: str, terms: Sequence[Part], unknown: Sequence[str]
) -> str:
    """Return a table: a row for each term with its contribution, then the sum."""
    names = [*terms[0]][:-1] if terms else ["term"]
    rows = [[*names, "adds"]]
    for term in terms:
        values = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in term.values()]
        rows.append([*values[:-1], repr(term["contribution"])])
    rows.append(["sum", *[""] * (len(names) - 1), repr(sum_contributions(terms))])
    lines = [f"query {query}, document {document}", *aligned(rows)]
    if unknown:
        lines.append(f"in no document: {' '.join(unknown)}")
    return "".join(f"{line}\n" for line in lines)


def sum_contributions(terms: Sequence[Part]) -> float:
    """Return the score that the terms of a query give a document."""
    return sum(float(term["contribution"]) for term in terms)
