"""Measures of a ranking, named as in ir_measures, computed as trec_eval does.

The measures are `P@k`, `R@k`, `AP`, `RR`, `nDCG`, `Success@k` and `Rprec`; AP, RR and nDCG can have
`@k`. With `(rel=2)` after the name, only judgements of at least 2 are relevant (not for nDCG). MAP,
MRR, Recall@k, Precision@k and Hit@k are other names. Upper and lower case are the same.
"""

import re
from collections.abc import Callable, Sequence
from math import log2
from typing import NamedTuple

from nlpkit.errors import UsageError
from nlpkit.registry import suggest

# Arguments: gains in the order of the ranking, gains of all judged documents, cutoff or length.
Formula = Callable[[Sequence[int], Sequence[int], int], float]


class Measure(NamedTuple):
    """One measure; `name` is printed."""

    name: str
    formula: Formula
    cutoff: int | None
    rel: int  # the lowest relevance of a relevant document
    graded: bool

    def of(self, ranking: Sequence[str], judged: dict[str, int]) -> float:
        """Return the value for one query; it is 0 without a relevant document, as in trec_eval."""
        grades = [judged.get(document, 0) for document in ranking]
        ideal = list(judged.values())
        if not self.graded:
            grades = [int(grade >= self.rel) for grade in grades]
            ideal = [int(grade >= self.rel) for grade in ideal]
        # The ideal ranking of nDCG has all relevant documents, even if the ranking is shorter.
        return self.formula(grades, ideal, self.cutoff or max(len(grades), len(ideal)))


def _share(hits: Sequence[int], judged: Sequence[int]) -> float:
    relevant = sum(judged)
    return sum(hits) / relevant if relevant else 0.0


def _average_precision(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    relevant = sum(judged)
    total, hits = 0.0, 0
    for rank, hit in enumerate(gains[:k], 1):
        if hit:
            hits += 1
            total += hits / rank
    return total / relevant if relevant else 0.0


def _ndcg(gains: Sequence[int], judged: Sequence[int], k: int) -> float:
    best = sorted((grade for grade in judged if grade > 0), reverse=True)
    ideal = _dcg(best[:k])
    return _dcg(gains[:k]) / ideal if ideal else 0.0


def _dcg(grades: Sequence[int]) -> float:
    # Järvelin and Kekäläinen 2002 with linear gain and the discount of trec_eval, log2(rank + 1).
    return sum(grade / log2(rank + 1) for rank, grade in enumerate(grades, 1) if grade > 0)


_FORMULAS: dict[str, Formula] = {
    "P": lambda gains, judged, k: sum(gains[:k]) / k,  # also of a ranking that is shorter
    "R": lambda gains, judged, k: _share(gains[:k], judged),
    "AP": _average_precision,
    "RR": lambda gains, judged, k: next((1 / n for n, hit in enumerate(gains[:k], 1) if hit), 0.0),
    "nDCG": _ndcg,
    "Success": lambda gains, judged, k: float(any(gains[:k])),
    "Rprec": lambda gains, judged, k: _share(gains[: sum(judged)], judged),
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
    """Return the measure `text`; raise `UsageError` with the nearest name if it is unknown."""
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
        raise UsageError(f"{text}: Rprec takes no depth; it is the number of relevant documents")
    if cutoff is not None and int(cutoff) < 1:
        raise UsageError(f"{text}: the depth is at least 1")
    if name == "nDCG" and rel:
        raise UsageError(f"{text}: nDCG takes relevances as gains, so it has no (rel=N)")
    if rel is not None and int(rel) < 1:
        raise UsageError(f"{text}: rel is at least 1")
    canonical = name + (f"(rel={int(rel)})" if rel else "") + (f"@{int(cutoff)}" if cutoff else "")
    return Measure(
        canonical, _FORMULAS[name], int(cutoff) if cutoff else None, int(rel or 1), name == "nDCG"
    )


def parse_all(texts: Sequence[str]) -> list[Measure]:
    """Return the measures without repeats; a text can have several, separated by commas."""
    found = [parse(part.strip()) for text in texts for part in text.split(",")]
    return list({measure.name: measure for measure in found}.values())
