"""Score rankings against relevance judgements, as trec_eval does.

QRELS holds `query 0 document relevance`, or BEIR's tsv `query document relevance` with its header;
RUN `query Q0 document rank score tag`; .gz is looked through, - is stdin. Several runs give a row
each. Documents are in the order of their scores, read as float32, equal ones by descending
identifier; the rank column counts for nothing: all as trec_eval has it.

The means are over the queries that are in both files (trec_eval's rule); with --complete over all
queries of QRELS, 0 for those that RUN does not have (trec_eval -c, and what ir_measures gives).

Measures, as ir_measures names them: nDCG and nDCG@k (linear gain, log2(rank + 1)), AP (MAP), RR
(MRR), P@k, R@k (Recall@k), Success@k, Rprec; (rel=2) for what counts as relevant: P(rel=2)@10.
"""

import argparse
import sys

from nlpkit.errors import UsageError
from nlpkit.score.files import name_of
from nlpkit.score.search import evaluation
from nlpkit.score.search.evaluation import Evaluation
from nlpkit.score.search.judgements import read_qrels, read_run
from nlpkit.score.search.measures import parse_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nlpkit score ir`."""
    parser.add_argument("qrels", metavar="QRELS", help="relevance judgements")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="rankings")
    parser.add_argument(
        "-m",
        "--measures",
        metavar="MEASURE",
        nargs="+",
        default=evaluation.DEFAULT,
        help=f"default: {' '.join(evaluation.DEFAULT)}",
    )
    parser.add_argument("-c", "--complete", action="store_true", help="mean over all of QRELS")
    parser.add_argument("--per-query", action="store_true", help="each query's values, too")
    parser.add_argument("--json", action="store_true", help="values unrounded, one object a run")
    text = "the numbers alone, a line a run"
    parser.add_argument("-b", "--score-only", action="store_true", help=text)
    parser.add_argument("-w", "--width", type=int, default=4, help="decimals; default: 4")
    parser.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")


def run(arguments: argparse.Namespace) -> float | None:
    """Print the measures; return the first one of the first run."""
    measures = parse_all(arguments.measures)
    if [arguments.qrels, *arguments.runs].count("-") > 1:
        raise UsageError("stdin (-) can be read once only")
    if arguments.json and arguments.score_only:
        raise UsageError("--json and --score-only exclude each other")
    if arguments.width < 0:
        raise UsageError(f"--width: {arguments.width} is below 0")
    qrels = read_qrels(arguments.qrels)
    found: list[Evaluation] = []
    for path in arguments.runs:
        rankings = read_run(path)
        name = name_of(path)
        found.append(
            evaluation.evaluate(name, qrels, rankings, measures, complete=arguments.complete)
        )
        if not arguments.quiet:
            sys.stderr.write(f"{name}: means {found[-1].about}\n")
    if arguments.json:
        text = evaluation.as_json(found, arguments.per_query, qrels=name_of(arguments.qrels))
    elif arguments.score_only:
        rows = (each.means.values() for each in found)
        text = "".join("\t".join(f"{v:.{arguments.width}f}" for v in row) + "\n" for row in rows)
    else:
        text = evaluation.table(found, arguments.width, arguments.per_query)
    sys.stdout.write(text)
    return found[0].means[measures[0].name]
