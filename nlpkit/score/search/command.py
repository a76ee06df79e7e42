"""What `bm25` and `tfidf` share: options, rankings out, their scores, the top words."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.score.files import name_of
from nlpkit.score.search import evaluation, indexing, keywords, run_lines
from nlpkit.score.search.documents import FORMATS, Records
from nlpkit.score.search.inverted_index import Index
from nlpkit.score.search.judgements import Qrels, read_qrels
from nlpkit.score.search.measures import Measure, parse_all
from nlpkit.score.search.ranking import Ranker, Weighting
from nlpkit.score.search.run_lines import Ranked
from nlpkit.score.search.words import TOKENIZERS, Words, look_uncut, tokenizer

_TOP = 10
# What trec_eval's tracks rank, where the ranking is scored and no depth is given.
_TOP_SCORED = 1000
# Terms that are looked at to tell whether texts have been cut into words at all.
_SAMPLE = 1000


def add_arguments(parser: argparse.ArgumentParser, top_words: bool = False) -> None:
    """Add the options that every way of ranking has; with `top_words`, QUERIES may be missing."""
    parser.add_argument("docs", metavar="DOCS", help="documents, or the directory of an index")
    if top_words:
        text = "queries; without them, the top words of each document are printed"
        parser.add_argument("queries", metavar="QUERIES", nargs="?", help=text)
    else:
        parser.add_argument("queries", metavar="QUERIES", help="queries")
    reading = parser.add_argument_group("reading")
    reading.add_argument("--tokenize", choices=TOKENIZERS, help="default: word")
    reading.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="lower case first; default: yes",
    )
    reading.add_argument("--input-format", choices=FORMATS, help="of DOCS; default: by its ending")
    reading.add_argument("--query-format", choices=FORMATS, help="of QUERIES, likewise")
    reading.add_argument(
        "--title",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="put the title of jsonl before its text; default: yes",
    )
    text = "keep the index here, use it while DOCS is the same"
    reading.add_argument("--index", metavar="DIR", help=text)
    writing = parser.add_argument_group("writing")
    what = "documents a query, or words a document" if top_words else "documents a query"
    text = f"{what}; default: {_TOP}, with --qrels {_TOP_SCORED}"
    writing.add_argument("--top", type=int, metavar="N", help=text)
    usual = "trec, or tsv without QUERIES" if top_words else "trec"
    writing.add_argument("--format", choices=run_lines.FORMATS, help=f"default: {usual}")
    writing.add_argument(
        "--explain", nargs=2, metavar=("QUERY", "DOC"), help="one score, term by term, instead"
    )
    writing.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument("--qrels", metavar="FILE", help="print measures instead of the ranking")
    default = " ".join(evaluation.DEFAULT)
    text = f"default: {default}; see nlpkit score ir --help"
    scoring.add_argument("-m", "--measures", nargs="+", metavar="MEASURE", help=text)
    text = "mean over all of --qrels, not those with a hit alone"
    scoring.add_argument("-c", "--complete", action="store_true", help=text)
    scoring.add_argument("--run", metavar="FILE", help="with --qrels: write the ranking here")


class Plan(NamedTuple):
    """The options, read and checked, before any file is opened."""

    top: int
    format: str
    qrels: str | None
    measures: list[Measure]


def run(
    found: argparse.Namespace, name: str, weighting_of: Callable[[Index], Weighting]
) -> float | None:
    """Print rankings, their measures, or an explanation; return the first measure if any."""
    plan = _plan(found)
    info = _silent if found.quiet else _info
    # An error in the judgements is raised before the index is made.
    qrels = read_qrels(plan.qrels) if plan.qrels else None
    index, settings = indexing.index_of(found, info)
    words = tokenizer(settings.tokenize, settings.lowercase)
    weighting = weighting_of(index)
    signature = indexing.signature(name, weighting, index, settings)
    lines = f"{len(index.ids)} documents ({index.empty} without a word)"
    info(f"{lines}, {len(index.terms)} terms, mean length {index.mean_length:.2f}")
    info(signature)
    if look_uncut(islice(index.terms, _SAMPLE)):
        info(f"{settings.tokenize} leaves whole clauses uncut: --tokenize bigram or zh cuts them")
    if found.queries is None:
        run_lines.check_identifiers(plan.format, name_of(found.docs), index.ids)
        for line in keywords.lines(index, weighting, plan.top, plan.format, signature):
            sys.stdout.write(line)
        return None
    ranker = Ranker(index, weighting)
    records = Records(found.queries, found.query_format, title=settings.title)
    if found.explain:
        _explain(ranker, records, words, found, plan.format)
        return None
    run_lines.check_identifiers(plan.format, name_of(found.docs), index.ids)
    write = run_lines.lines(plan.format, weighting.tag, signature)
    rankings: dict[str, list[str]] = {}
    with _output(found.run, plan.qrels is not None) as put:
        for ranked in _rankings(ranker, records, words, plan, info):
            put(write(ranked))
            if qrels is not None and ranked.documents:
                rankings[ranked.query] = ranked.documents
    if qrels is None:
        return None
    return _scored(name, qrels, rankings, plan, found.complete, signature, info)


def _plan(found: argparse.Namespace) -> Plan:
    """Raise `UsageError` for options out of range, or that exclude each other."""
    if found.docs == found.queries == "-" or (
        found.qrels == "-" and "-" in (found.docs, found.queries)
    ):
        raise UsageError("stdin (-) can be read once only")
    if found.queries is None:
        _check_alone(found)
    if found.top is not None and found.top < 1:
        raise UsageError(f"--top: {found.top} is below 1")
    if found.explain and (found.qrels or found.format == "tsv"):
        raise UsageError("--explain goes without --qrels, and as text or --format json")
    for option, value in (("measures", found.measures), ("run", found.run)):
        if value and not found.qrels:
            raise UsageError(f"--{option} needs --qrels FILE")
    if found.complete and not found.qrels:
        raise UsageError("--complete needs --qrels FILE")
    measures = parse_all(found.measures or evaluation.DEFAULT) if found.qrels else []
    top = found.top or (_TOP_SCORED if found.qrels else _TOP)
    usual = "tsv" if found.queries is None else "text" if found.explain else "trec"
    return Plan(top, found.format or usual, found.qrels, measures)


def _check_alone(found: argparse.Namespace) -> None:
    """Raise `UsageError` for options that need queries."""
    if found.format == "trec":
        raise UsageError("--format trec is of rankings, so it needs QUERIES; use tsv or json")
    for option in ("qrels", "explain", "query_format"):
        if getattr(found, option):
            raise UsageError(f"--{option.replace('_', '-')} needs QUERIES")


def _rankings(
    ranker: Ranker, records: Records, words: Words, plan: Plan, info: Callable[[str], None]
) -> Iterator[Ranked]:
    """Yield the ranking of each query; say how many there were, and how many found nothing."""
    ids = ranker.index.ids
    queries = without = unknown = 0
    for query, text in records:
        found = words(text)
        hits = ranker.top(found, plan.top)
        queries += 1
        without += not hits
        unknown += not ranker.known(found)
        run_lines.check_identifiers(plan.format, name_of(records.path), [query])
        yield Ranked(query, [ids[hit.document] for hit in hits], [hit.score for hit in hits])
    if not queries:
        raise DataError(f"{name_of(records.path)}: holds no query")
    blank = f", {records.blank} blank lines left out" if records.blank else ""
    info(f"{queries} queries, {without} without a hit ({unknown} without a known word){blank}")


def _explain(
    ranker: Ranker, records: Records, words: Words, found: argparse.Namespace, form: str
) -> None:
    query, document = found.explain
    texts = dict(records)
    numbers = {key: number for number, key in enumerate(ranker.index.ids)}
    for kind, key, known in (("query", query, texts), ("document", document, numbers)):
        if key not in known:
            raise UsageError(f"--explain: no {kind} {key!r}")
    asked = words(texts[query])
    parts = ranker.explain(asked, numbers[document])
    unknown = [*dict.fromkeys(word for word in asked if word not in ranker.index.terms)]
    columns = ranker.weighting.columns
    if form == "json":
        shown = run_lines.explanation_object(query, document, parts, columns, unknown)
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(run_lines.explanation(query, document, parts, columns, unknown))


@contextlib.contextmanager
def _output(path: str | None, scored: bool) -> Iterator[Callable[[str], object]]:
    """Give what writes the ranking: to stdout or, where it is scored, to a file if there is one."""
    if not scored:
        yield sys.stdout.write
        return
    if path is None:
        yield _silent
        return
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file.write
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


def _scored(
    name: str,
    qrels: Qrels,
    rankings: dict[str, list[str]],
    plan: Plan,
    complete: bool,
    signature: str,
    info: Callable[[str], None],
) -> float:
    """Print the measures of the ranking; return the first."""
    found = evaluation.evaluate(name, qrels, rankings, plan.measures, complete=complete)
    info(f"means {found.about}; the best {plan.top} of each query")
    if plan.format == "json":
        more = {"signature": signature, "top": plan.top, "qrels": name_of(str(plan.qrels))}
        sys.stdout.write(evaluation.as_json([found], False, **more))
    else:
        sys.stdout.write(evaluation.table([found], 4, False))
    return found.means[plan.measures[0].name]


def _info(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed stderr changes no ranking
        sys.stderr.write(f"{text}\n")


def _silent(_text: str) -> None:
    pass
