"""The common part of `bm25` and `tfidf`: options, printed rankings, their measures, top words."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from nlpkit import __version__
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.score.files import display_name
from nlpkit.score.search import evaluation, inverted_index, keywords, run_lines
from nlpkit.score.search.documents import FORMATS, Records
from nlpkit.score.search.inverted_index import Index
from nlpkit.score.search.judgements import Qrels, read_qrels
from nlpkit.score.search.measures import Measure, parse_all
from nlpkit.score.search.ranking import Ranker, Weighting
from nlpkit.score.search.run_lines import Ranked
from nlpkit.score.search.words import TOKENIZERS, Words, get_tokenizer, seem_unsplit

_TOP = 10
# The default depth of a ranking that is scored, as in the TREC tracks.
_TOP_SCORED = 1000
_SAMPLE = 1000  # terms that `seem_unsplit` reads


def add_arguments(parser: argparse.ArgumentParser, top_words: bool = False) -> None:
    """Add the options of every ranking; with `top_words`, QUERIES may be missing."""
    parser.add_argument("docs", metavar="DOCS", help="documents")
    if top_words:
        text = "queries; without them, the top words of each document are printed"
        parser.add_argument("queries", metavar="QUERIES", nargs="?", help=text)
    else:
        parser.add_argument("queries", metavar="QUERIES", help="queries")
    reading = parser.add_argument_group("reading")
    reading.add_argument("--tokenize", choices=TOKENIZERS, default="word", help="default: word")
    reading.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="lower case first; default: yes",
    )
    reading.add_argument(
        "--input-format", choices=FORMATS, help="format of DOCS; default: by the file's ending"
    )
    reading.add_argument("--query-format", choices=FORMATS, help="the same for QUERIES")
    reading.add_argument(
        "--title",
        action=argparse.BooleanOptionalAction,
        help="put the title of jsonl before its text; default: yes",
    )
    # Given to the options themselves, the default would be written into their help twice.
    parser.set_defaults(lowercase=True, title=True)
    writing = parser.add_argument_group("writing")
    count = "documents per query" + (", or words per document" if top_words else "")
    text = f"{count}; default: {_TOP}, with --qrels {_TOP_SCORED}"
    writing.add_argument("--top", type=int, metavar="N", help=text)
    usual = "trec, or tsv without QUERIES" if top_words else "trec"
    writing.add_argument("--format", choices=run_lines.FORMATS, help=f"default: {usual}")
    writing.add_argument(
        "--explain", nargs=2, metavar=("QUERY", "DOC"), help="print one score, term by term"
    )
    writing.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument("--qrels", metavar="FILE", help="print measures instead of the ranking")
    default = " ".join(evaluation.DEFAULT)
    text = f"default: {default}; see nlpkit score ir --help"
    scoring.add_argument("-m", "--measures", nargs="+", metavar="MEASURE", help=text)
    text = "mean over all queries of --qrels, also those without a hit"
    scoring.add_argument("-c", "--complete", action="store_true", help=text)
    scoring.add_argument("--run", metavar="FILE", help="with --qrels: write the ranking here")


class Plan(NamedTuple):
    """The checked options."""

    top: int
    format: str
    qrels: str | None
    measures: list[Measure]


def run(
    options: argparse.Namespace, name: str, weighting_of: Callable[[Index], Weighting]
) -> float | None:
    """Print rankings, their measures, or an explanation; return the first measure if any."""
    plan = _check_options(options)
    info = _silent if options.quiet else _info
    # Read first, so that an error in the judgements is raised before the index is built.
    qrels = read_qrels(plan.qrels) if plan.qrels else None
    words = get_tokenizer(options.tokenize, options.lowercase)
    documents = Records(options.docs, options.input_format, title=options.title)
    index = _build_index(documents, words, info)
    weighting = weighting_of(index)
    signature = "|".join([name, *_list_settings(weighting, index, documents, options)])
    lines = f"{number_of(len(index.ids), 'documents')} ({index.empty} without a word)"
    info(f"{lines}, {number_of(len(index.terms), 'terms')}, mean length {index.mean_length:.2f}")
    info(signature)
    if seem_unsplit(islice(index.terms, _SAMPLE)):
        info(f"{options.tokenize} does not split clauses into words: use --tokenize bigram or zh")
    if options.queries is None:
        run_lines.check_identifiers(plan.format, display_name(options.docs), index.ids)
        for line in keywords.write_lines(index, weighting, plan.top, plan.format, signature):
            sys.stdout.write(line)
        return None
    ranker = Ranker(index, weighting)
    records = Records(options.queries, options.query_format, title=options.title)
    if options.explain:
        _explain(ranker, records, words, options, plan.format)
        return None
    run_lines.check_identifiers(plan.format, display_name(options.docs), index.ids)
    write = run_lines.choose_writer(plan.format, weighting.tag, signature)
    rankings: dict[str, list[str]] = {}
    with _open_output(options.run, plan.qrels is not None) as put:
        for ranked in _rank_queries(ranker, records, words, plan, info):
            put(write(ranked))
            if qrels is not None and ranked.documents:
                rankings[ranked.query] = ranked.documents
    if qrels is None:
        return None
    return _print_measures(name, qrels, rankings, plan, options.complete, signature, info)


def _check_options(options: argparse.Namespace) -> Plan:
    """Return the checked options; raise `UsageError` if they are out of range or conflict."""
    if options.docs == options.queries == "-" or (
        options.qrels == "-" and "-" in (options.docs, options.queries)
    ):
        raise UsageError("stdin (-) can be read once only")
    if options.queries is None:
        _check_alone(options)
    if options.top is not None and options.top < 1:
        raise UsageError(f"--top: {options.top} is below 1")
    if options.explain and (options.qrels or options.format == "tsv"):
        raise UsageError("--explain excludes --qrels and --format tsv")
    for option, value in (("measures", options.measures), ("run", options.run)):
        if value and not options.qrels:
            raise UsageError(f"--{option} needs --qrels FILE")
    if options.complete and not options.qrels:
        raise UsageError("--complete needs --qrels FILE")
    measures = parse_all(options.measures or evaluation.DEFAULT) if options.qrels else []
    top = options.top or (_TOP_SCORED if options.qrels else _TOP)
    usual = "tsv" if options.queries is None else "text" if options.explain else "trec"
    return Plan(top, options.format or usual, options.qrels, measures)


def _check_alone(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options that need queries."""
    if options.format == "trec":
        raise UsageError("--format trec is for rankings, so it needs QUERIES; use tsv or json")
    for option in ("qrels", "explain", "query_format"):
        if vars(options)[option]:
            raise UsageError(f"--{option.replace('_', '-')} needs QUERIES")


def _build_index(documents: Records, words: Words, info: Callable[[str], None]) -> Index:
    """Return the index of the documents; raise `DataError` if there are none."""
    index = inverted_index.build(documents, words)
    if not index.ids:
        raise DataError(f"{display_name(documents.path)}: holds no document")
    if documents.blank:
        info(
            f"{display_name(documents.path)}: {number_of(documents.blank, 'blank lines')} left out"
        )
    return index


def _list_settings(
    weighting: Weighting, index: Index, documents: Records, options: argparse.Namespace
) -> Iterator[str]:
    """Yield `key:value` for each setting that changes the scores."""
    for key, value in weighting.parameters.items():
        yield f"{key}:{'none' if value is None else value}"
    yield f"tok:{options.tokenize}"
    yield f"case:{'lower' if options.lowercase else 'mixed'}"
    if documents.format == "jsonl":
        yield f"title:{'yes' if options.title else 'no'}"
    yield f"docs:{len(index.ids)}"
    yield f"version:{__version__}"


def _rank_queries(
    ranker: Ranker, records: Records, words: Words, plan: Plan, info: Callable[[str], None]
) -> Iterator[Ranked]:
    """Yield the ranking of each query; then report the numbers of queries and of empty rankings."""
    ids = ranker.index.ids
    queries = without = unknown = 0
    for query, text in records:
        terms = words(text)
        hits = ranker.top(terms, plan.top)
        queries += 1
        without += not hits
        unknown += not ranker.known(terms)
        run_lines.check_identifiers(plan.format, display_name(records.path), [query])
        yield Ranked(query, [ids[hit.document] for hit in hits], [hit.score for hit in hits])
    if not queries:
        raise DataError(f"{display_name(records.path)}: holds no query")
    blank = f", {number_of(records.blank, 'blank lines')} left out" if records.blank else ""
    number = number_of(queries, "queries")
    info(f"{number}, {without} without a hit ({unknown} without a known word){blank}")


def _explain(
    ranker: Ranker, records: Records, words: Words, options: argparse.Namespace, form: str
) -> None:
    query, document = options.explain
    texts = dict(records)
    numbers = {key: number for number, key in enumerate(ranker.index.ids)}
    for kind, key, known in (("query", query, texts), ("document", document, numbers)):
        if key not in known:
            raise UsageError(f"--explain: no {kind} {key!r}")
    terms = words(texts[query])
    parts = ranker.explain(terms, numbers[document])
    unknown = [*dict.fromkeys(word for word in terms if word not in ranker.index.terms)]
    if form == "json":
        total = run_lines.sum_contributions(parts)
        found = {"query": query, "document": document, "score": total, "terms": parts}
        sys.stdout.write(json.dumps(found | {"unknown": unknown}, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(run_lines.format_explanation(query, document, parts, unknown))


@contextlib.contextmanager
def _open_output(path: str | None, scored: bool) -> Iterator[Callable[[str], object]]:
    """Yield the function that writes the ranking: to stdout, or if it is scored, to `path`."""
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


def _print_measures(
    name: str,
    qrels: Qrels,
    rankings: dict[str, list[str]],
    plan: Plan,
    complete: bool,
    signature: str,
    info: Callable[[str], None],
) -> float:
    """Print the measures of the ranking; return the first."""
    result = evaluation.evaluate(name, qrels, rankings, plan.measures, complete=complete)
    info(f"means {result.about}; the best {plan.top} of each query")
    if plan.format == "json":
        more = {"signature": signature, "top": plan.top, "qrels": display_name(str(plan.qrels))}
        sys.stdout.write(evaluation.to_json([result], False, **more))
    else:
        sys.stdout.write(evaluation.format_table([result], 4, False))
    return result.means[plan.measures[0].name]


def _info(text: str) -> None:
    with contextlib.suppress(OSError):  # the ranking does not depend on stderr
        sys.stderr.write(f"{text}\n")


def _silent(_text: str) -> None:
    pass
