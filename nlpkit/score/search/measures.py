"""Measures of a ranking, named as in ir_measures, computed as trec_eval does.

`P@k`, `R@k`, `AP`, `RR`, `nDCG`, `Success@k` and `Rprec`, with `@k` where it stands and optionally
for the others; `(rel=2)` after the name of any but nDCG counts only judgements of at least 2.
Names of other programs are taken, too: MAP, MRR, Recall@k, Precision@k, Hit@k, in any case.
"""

import re
from collections.abc import Callable, Sequence
from math import log2
from typing import NamedTuple

from nlpkit.errors import UsageError
from nlpkit.registry import suggest

# Gains of a ranking in its order, gains of all judged documents, the cutoff or the whole length.
Formula = Callable[[Sequence[int], Sequence[int], int], float]


class Measure(NamedTuple):
    """One measure, called by its name as printed."""

    name: str
    formula: Formula
    cutoff: int | None
    rel: int  # the least relevance that counts as relevant
    graded: bool

    def of(self, ranking: Sequence[str], judged: dict[str, int]) -> float:
        """Return the value for one query: 0 where nothing is relevant, as trec_eval does."""
        grades = [judged.get(document, 0) for document in ranking]
        ideal = list(judged.values())
        if not self.graded:
            grades = [int(grade >= self.rel) for grade in grades]
            ideal = [int(grade >= self.rel) for grade in ideal]
        return self.formula(grades, ideal, len(grades) if self.cutoff is None else self.cutoff)


def _precision(found: Sequence[int], _judged: Sequence[int], k: int) -> float:
    # Of k places, also where the ranking has fewer.
    return sum(found[:k]) / k


def _recall(found: Sequence[int], judged: Sequence[int], k: int) -> float:
    relevant = sum(judged)
    return sum(found[:k]) / relevant if relevant else 0.0


def _r_precision(found: Sequence[int], judged: Sequence[int], _k: int) -> float:
    relevant = sum(judged)
    return sum(found[:relevant]) / relevant if relevant else 0.0


def _success(found: Sequence[int], _judged: Sequence[int], k: int) -> float:
    return float(any(found[:k]))


def _reciprocal_rank(found: Sequence[int], _judged: Sequence[int], k: int) -> float:
    return next((1 / rank for rank, hit in enumerate(found[:k], 1) if hit), 0.0)


def _average_precision(found: Sequence[int], judged: Sequence[int], k: int) -> float:
    relevant = sum(judged)
    total, hits = 0.0, 0
    for rank, hit in enumerate(found[:k], 1):
        if hit:
            hits += 1
            total += hits / rank
    return total / relevant if relevant else 0.0


def _ndcg(found: Sequence[int], judged: Sequence[int], k: int) -> float:
    # Without a cutoff the ideal is of all that is relevant, however short the ranking.
    best = sorted((grade for grade in judged if grade > 0), reverse=True)
    ideal = _dcg(best[:k])
    return _dcg(found[:k]) / ideal if ideal else 0.0


def _ndcg_of_all(found: Sequence[int], judged: Sequence[int], _k: int) -> float:
    return _ndcg(found, judged, max(len(found), len(judged)))


def _dcg(grades: Sequence[int]) -> float:
    # Järvelin and Kekäläinen 2002 with linear gain; the discount log2(rank + 1) is trec_eval's.
    return sum(grade / log2(rank + 1) for rank, grade in enumerate(grades, 1) if grade > 0)


_FORMULAS: dict[str, Formula] = {
    "P": _precision,
    "R": _recall,
    "AP": _average_precision,
    "RR": _reciprocal_rank,
    "nDCG": _ndcg,
    "Success": _success,
    "Rprec": _r_precision,
}
_NEED_CUTOFF = ("P", "R", "Success")
_OTHER_NAMES = {
    "map": "AP",
    "mrr": "RR",
    "recall": "R",
    "precision": "P",
    "hit": "Success",
    "hits": "Success",
} | {name.lower(): name for name in _FORMULAS}
_SHAPE = re.compile(r"(\w+)(?:\(rel=(\d+)\))?(?:@(\d+))?", re.ASCII)


def parse(text: str) -> Measure:
    """Return the measure called `text`; raise `UsageError` with the nearest name for no other."""
    shape = _SHAPE.fullmatch(text.replace(" ", ""))
    name = _OTHER_NAMES.get(shape[1].lower()) if shape else None
    if shape is None or name is None:
        known = ", ".join(f"{n}@10" if n in _NEED_CUTOFF else n for n in _FORMULAS)
        near = suggest(text.partition("@")[0], _FORMULAS)
        raise UsageError(f"no measure {text!r}{near}; known: {known}, and nDCG@10, P(rel=2)@5")
    rel, cutoff = shape[2], shape[3]
    if name in _NEED_CUTOFF and cutoff is None:
        raise UsageError(f"{text}: needs a depth, such as {name}@10")
    if name == "Rprec" and cutoff:
        raise UsageError(f"{text}: Rprec's depth is the number of relevant documents")
    if cutoff is not None and int(cutoff) < 1:
        raise UsageError(f"{text}: the depth is at least 1")
    if name == "nDCG" and rel:
        raise UsageError(f"{text}: nDCG takes relevances as gains, without a least one")
    if rel is not None and int(rel) < 1:
        raise UsageError(f"{text}: rel is at least 1")
    formula = _ndcg_of_all if name == "nDCG" and cutoff is None else _FORMULAS[name]
    canonical = name + (f"(rel={int(rel)})" if rel else "") + (f"@{int(cutoff)}" if cutoff else "")
    return Measure(
        canonical, formula, int(cutoff) if cutoff else None, int(rel or 1), name == "nDCG"
    )


def parse_all(texts: Sequence[str]) -> list[Measure]:
    """Return the measures, each once; several may be in one text, joined by commas."""
    found = {m.name: m for text in texts for part in text.split(",") if (m := parse(part.strip()))}
    return list(found.values())
