"""Score rankings against relevance judgements, as trec_eval does.

QRELS has lines `query 0 document relevance`, or `query document relevance` after a header, as in
BEIR. RUN has lines `query Q0 document rank score tag`. .gz files are unpacked; - is stdin. Each run
is a row of the table. As in trec_eval, documents are sorted by score, read as float32; equal scores
are sorted by descending identifier; the rank column is ignored.

The means are over the queries that are in both files, as in trec_eval. With --complete they are
over all queries of QRELS, and queries that are not in RUN count 0, as in trec_eval -c and
ir_measures.

Measures have the names of ir_measures: nDCG and nDCG@k (linear gain, log2(rank + 1)), AP (MAP), RR
(MRR), P@k, R@k (Recall@k), Success@k, Rprec; (rel=2) sets the lowest relevance that counts:
P(rel=2)@10.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from nlpkit.errors import DataError, UsageError
from nlpkit.plural import all_of, number_of
from nlpkit.score.files import display_name
from nlpkit.score.parsing import integer
from nlpkit.score.search.judgements import Qrels, Rankings, read_qrels, read_run
from nlpkit.score.search.measures import Measure, parse_all
from nlpkit.text_table import aligned

_DEFAULT = ("nDCG@10", "AP", "RR", "P@10", "R@100")


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
        if self.complete:
            about = f"over {all_of(len(self.values), 'queries')} with judgements"
            about += f", 0 for the {self.unranked} not in the run" if self.unranked else ""
        else:
            about = f"over the {number_of(len(self.values), 'queries')} in both"
            if self.unranked:
                about += f"; not in the run: {self.unranked} with judgements (-c counts them 0)"
        return about + (f"; left out: {self.unjudged} without judgements" if self.unjudged else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nlpkit score ir`."""
    parser.add_argument("qrels", metavar="QRELS", help="relevance judgements")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="rankings")
    text = f"default: {' '.join(_DEFAULT)}"
    parser.add_argument(
        "-m", "--measures", metavar="MEASURE", nargs="+", default=_DEFAULT, help=text
    )
    parser.add_argument("-c", "--complete", action="store_true", help="mean over all QRELS queries")
    parser.add_argument("--per-query", action="store_true", help="also the values of each query")
    parser.add_argument("--json", action="store_true", help="unrounded values, one object per run")
    text = "only the numbers, one line for each run"
    parser.add_argument("-b", "--score-only", action="store_true", help=text)
    parser.add_argument("-w", "--width", type=integer, default=4, help="decimals; default: 4")
    parser.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")


def run(arguments: argparse.Namespace) -> float | None:
    """Print the measures; return the lowest of all runs."""
    measures = parse_all(arguments.measures)
    if [arguments.qrels, *arguments.runs].count("-") > 1:
        raise UsageError("stdin (-) can be read once only")
    if arguments.score_only and (arguments.json or arguments.per_query):
        option = "--json" if arguments.json else "--per-query"
        raise UsageError(f"{option} and --score-only exclude each other")
    qrels = read_qrels(arguments.qrels)
    found = []
    for path in arguments.runs:
        name = display_name(path)
        found.append(evaluate(name, qrels, read_run(path), measures, complete=arguments.complete))
        if not arguments.quiet:
            sys.stderr.write(f"{name}: means {found[-1].about}\n")
    if arguments.json:
        objects = [_to_object(each, arguments) for each in found]
        text = json.dumps(objects[0] if len(objects) == 1 else objects, ensure_ascii=False) + "\n"
    elif arguments.score_only:
        rows = (each.means.values() for each in found)
        text = "".join("\t".join(f"{v:.{arguments.width}f}" for v in row) + "\n" for row in rows)
    else:
        text = _format_table(found, arguments.width, arguments.per_query)
    sys.stdout.write(text)
    return min(value for each in found for value in each.means.values())


def evaluate(
    run: str, qrels: Qrels, rankings: Rankings, measures: Sequence[Measure], *, complete: bool
) -> Evaluation:
    """Return the values over the queries of both, or if `complete`, over all with judgements.

    Raise `DataError` if no query is in both.
    """
    both = [query for query in qrels if query in rankings]
    if not both:
        firsts = f"its first is {next(iter(rankings))!r}, theirs {next(iter(qrels))!r}"
        raise DataError(f"{run}: no query of it has judgements ({firsts})")
    values = {
        query: {m.name: m.of(rankings.get(query, []), qrels[query]) for m in measures}
        for query in (qrels if complete else both)
    }
    means = {m.name: fsum(v[m.name] for v in values.values()) / len(values) for m in measures}
    unjudged = sum(query not in qrels for query in rankings)
    return Evaluation(run, values, means, len(qrels) - len(both), unjudged, complete)


def _to_object(of: Evaluation, arguments: argparse.Namespace) -> dict[str, object]:
    over = "all queries with judgements" if of.complete else "queries in both"
    found: dict[str, object] = {
        "qrels": display_name(arguments.qrels), "run": of.run, "scores": of.means,
        "queries": len(of.values), "averaged_over": over,
        "unranked": of.unranked, "unjudged": of.unjudged,
    }  # fmt: skip
    return found | ({"per_query": of.values} if arguments.per_query else {})


def _format_table(evaluations: Sequence[Evaluation], width: int, per_query: bool) -> str:
    names = list(evaluations[0].means)
    rows = [["run", "query" if per_query else "queries", *names]]
    for each in evaluations:
        last = f"all {len(each.values)}" if per_query else str(len(each.values))
        for query, values in [*(each.values.items() if per_query else ()), (last, each.means)]:
            rows.append([each.run, query, *(f"{values[n]:.{width}f}" for n in names)])
    return "".join(f"{line}\n" for line in aligned(rows))
