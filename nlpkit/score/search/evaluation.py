"""Evaluates rankings with judgements: values of each query and means, as a table or JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from nlpkit.errors import DataError
from nlpkit.plural import all_of
from nlpkit.score.search.judgements import Qrels, Rankings
from nlpkit.score.search.measures import Measure
from nlpkit.text_table import aligned

DEFAULT = ("nDCG@10", "AP", "RR", "P@10", "R@100")


@dataclass(frozen=True)
class Evaluation:
    """The values of a run by query and measure, and the means over these queries."""

    run: str
    values: dict[str, dict[str, float]]
    means: dict[str, float]
    unranked: int  # queries with judgements that the run does not have
    unjudged: int  # queries of the run that have no judgements
    complete: bool

    @property
    def about(self) -> str:
        """A text that says over which queries the means are."""
        n, left = len(self.values), ""
        if self.unjudged:
            verbs = (
                "has no judgements and is" if self.unjudged == 1 else "have no judgements and are"
            )
            left = f"; {self.unjudged} of the run {verbs} left out"
        if self.complete:
            zero = f", 0 for the {self.unranked} not in the run" if self.unranked else ""
            of_all = all_of(n, "queries")
            return f"over {of_all} with judgements{zero}{left}"
        if self.unranked:
            verb = "is" if self.unranked == 1 else "are"
            left = (
                f"; {self.unranked} with judgements {verb} not in the run (-c counts them 0){left}"
            )
        return f"over the {n} {'query' if n == 1 else 'queries'} in both{left}"

    def as_object(self, per_query: bool) -> dict[str, object]:
        """Return the unrounded values for JSON."""
        over = "all queries with judgements" if self.complete else "queries in both"
        result: dict[str, object] = {"run": self.run, "scores": self.means}
        result |= {"queries": len(self.values), "averaged_over": over}
        result |= {"unranked": self.unranked, "unjudged": self.unjudged}
        return result | ({"per_query": self.values} if per_query else {})


def evaluate(
    run: str, qrels: Qrels, rankings: Rankings, measures: Sequence[Measure], *, complete: bool
) -> Evaluation:
    """Return the values over the queries of both, or if `complete`, over all with judgements.

    Raise `DataError` if no query is in both.
    """
    both = [query for query in qrels if query in rankings]
    if not both:
        ranked, judged = next(iter(rankings), "none"), next(iter(qrels))
        firsts = f"its first is {ranked!r}, theirs {judged!r}" if rankings else "it ranks nothing"
        raise DataError(f"{run}: no query of it has judgements ({firsts})")
    chosen = list(qrels) if complete else both
    values = {
        query: {m.name: m.of(rankings.get(query, []), qrels[query]) for m in measures}
        for query in chosen
    }
    means = {m.name: fsum(v[m.name] for v in values.values()) / len(values) for m in measures}
    unjudged = sum(query not in qrels for query in rankings)
    return Evaluation(run, values, means, len(qrels) - len(both), unjudged, complete)


def format_table(evaluations: Sequence[Evaluation], width: int, per_query: bool) -> str:
    """Return a table with aligned columns: run, queries (or query), values."""
    names = list(evaluations[0].means)
    rows = [["run", "query" if per_query else "queries", *names]]
    for each in evaluations:
        if per_query:
            for query, values in each.values.items():
                rows.append([each.run, query, *(f"{values[n]:.{width}f}" for n in names)])
        count = f"all {len(each.values)}" if per_query else str(len(each.values))
        rows.append([each.run, count, *(f"{each.means[n]:.{width}f}" for n in names)])
    return "".join(f"{line}\n" for line in aligned(rows))


def to_json(evaluations: Sequence[Evaluation], per_query: bool, **more: object) -> str:
    """Return a line of JSON: one object for one run, a list of objects for several."""
    objects = [more | each.as_object(per_query) for each in evaluations]
    return json.dumps(objects[0] if len(objects) == 1 else objects, ensure_ascii=False) + "\n"
