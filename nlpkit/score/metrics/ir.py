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
import sys

from nlpkit.errors import UsageError
from nlpkit.score.files import display_name
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
    parser.add_argument("-c", "--complete", action="store_true", help="mean over all QRELS queries")
    parser.add_argument("--per-query", action="store_true", help="also the values of each query")
    parser.add_argument("--json", action="store_true", help="unrounded values, one object per run")
    text = "only the numbers, one line for each run"
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
    evaluations: list[Evaluation] = []
    for path in arguments.runs:
        rankings = read_run(path)
        name = display_name(path)
        evaluations.append(
            evaluation.evaluate(name, qrels, rankings, measures, complete=arguments.complete)
        )
        if not arguments.quiet:
            sys.stderr.write(f"{name}: means {evaluations[-1].about}\n")
    if arguments.json:
        text = evaluation.to_json(
            evaluations, arguments.per_query, qrels=display_name(arguments.qrels)
        )
    elif arguments.score_only:
        rows = (result.means.values() for result in evaluations)
        text = "".join("\t".join(f"{v:.{arguments.width}f}" for v in row) + "\n" for row in rows)
    else:
        text = evaluation.format_table(evaluations, arguments.width, arguments.per_query)
    sys.stdout.write(text)
    return evaluations[0].means[measures[0].name]
