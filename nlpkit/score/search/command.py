"""The common part of `bm25` and `tfidf`: options, printed rankings, top words of documents."""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from nlpkit import __version__
from nlpkit.errors import DataError, UsageError
from nlpkit.plural import number_of
from nlpkit.score.search import inverted_index
from nlpkit.score.search.documents import FORMATS, Records
from nlpkit.score.search.inverted_index import Index
from nlpkit.score.search.ranking import Ranker, Weighting
from nlpkit.score.search.words import TOKENIZERS, get_tokenizer, seem_unsplit

_SAMPLE = 1000  # terms that `seem_unsplit` reads


def add_arguments(parser: argparse.ArgumentParser, top_words: bool = False) -> None:
    """Add the options of every ranking; with `top_words`, QUERIES may be missing."""
    parser.add_argument("docs", metavar="DOCS", help="documents")
    text = "queries" + ("; without them, the top words of each document are printed" * top_words)
    parser.add_argument("queries", metavar="QUERIES", nargs="?" if top_words else None, help=text)
    reading = parser.add_argument_group("reading")
    reading.add_argument("--tokenize", choices=TOKENIZERS, default="word", help="default: word")
    text = "compare with case; default: lower case first"
    reading.add_argument("--no-lowercase", dest="lowercase", action="store_false", help=text)
    text = "format of DOCS; default: by the file's ending"
    reading.add_argument("--input-format", choices=FORMATS, help=text)
    reading.add_argument("--query-format", choices=FORMATS, help="the same for QUERIES")
    writing = parser.add_argument_group("writing")
    text = "documents per query" + (", or words per document" * top_words) + "; default: 10"
    writing.add_argument("--top", type=int, default=10, metavar="N", help=text)
    text = "default: trec" + (", or tsv without QUERIES" * top_words)
    writing.add_argument("--format", choices=("trec", "tsv", "json"), help=text)
    writing.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")


def run(options: argparse.Namespace, name: str, weighting_of: Callable[[Index], Weighting]) -> None:
    """Print the ranking of each query, or without queries the top words of each document."""
    form = _choose_format(options)

    def say(text: str) -> None:
        if not options.quiet:
            with contextlib.suppress(OSError):  # the ranking does not depend on stderr
                sys.stderr.write(f"{text}\n")

    words = get_tokenizer(options.tokenize, options.lowercase)
    documents = Records(options.docs, options.input_format)
    index = inverted_index.build(documents, words)
    if not index.ids:
        raise DataError(f"{documents.name}: holds no document")
    _check_identifiers(form, documents.name, index.ids)
    weighting = weighting_of(index)
    settings = {k: "none" if v is None else v for k, v in weighting.parameters.items()}
    settings |= {"tok": options.tokenize, "case": "lower" if options.lowercase else "mixed"}
    settings |= {"docs": len(index.ids), "version": __version__}
    signature = "|".join([name, *(f"{key}:{value}" for key, value in settings.items())])
    empty = int(np.count_nonzero(index.lengths == 0))
    say(
        f"{number_of(len(index.ids), 'documents')} ({empty} without a word{documents.left_out}), "
        f"{number_of(len(index.terms), 'terms')}, mean length {index.mean_length:.2f}"
    )
    say(signature)
    if seem_unsplit(islice(index.terms, _SAMPLE)):
        say(f"{options.tokenize} does not split clauses into words: use --tokenize bigram or zh")
    if options.queries is None:
        for line in _list_top_words(index, weighting, options.top, form, signature):
            sys.stdout.write(line)
        return
    ranker = Ranker(index, weighting)
    records = Records(options.queries, options.query_format)
    queries = without = unknown = 0
    for query, text in records:
        _check_identifiers(form, records.name, [query])
        terms = words(text)
        hits = ranker.top(terms, options.top)
        queries += 1
        without += not hits
        unknown += not ranker.known(terms)
        ids, scores = [index.ids[hit.document] for hit in hits], [hit.score for hit in hits]
        sys.stdout.write(_format_ranking(query, ids, scores, form, weighting.tag, signature))
    if not queries:
        raise DataError(f"{records.name}: holds no query")
    number = number_of(queries, "queries")
    say(f"{number}, {without} without a hit ({unknown} without a known word){records.left_out}")


def _choose_format(options: argparse.Namespace) -> str:
    """Return the format of the output; raise `UsageError` for options that exclude each other."""
    if options.docs == options.queries == "-":
        raise UsageError("stdin (-) can be read once only")
    if options.top < 1:
        raise UsageError(f"--top: {options.top} is below 1")
    if options.queries is None and (options.format == "trec" or options.query_format):
        raise UsageError("--format trec and --query-format need QUERIES")
    return options.format or ("trec" if options.queries else "tsv")


def _check_identifiers(form: str, name: str, identifiers: Sequence[str]) -> None:
    bad = re.compile(r"\s" if form == "trec" else r"[\t\r\n]").search
    for key in identifiers if form != "json" else ():
        if bad(key):
            kind = "white space" if form == "trec" else "a tab or a line's end"
            raise DataError(f"{name}: identifier {key!r} has {kind} in it; use --format json")


def _format_ranking(
    query: str, ids: Sequence[str], scores: Sequence[float], form: str, tag: str, signature: str
) -> str:
    rows = enumerate(zip(ids, make_distinct(scores) if form == "trec" else scores, strict=True), 1)
    if form == "json":
        results = [{"id": key, "rank": rank, "score": score} for rank, (key, score) in rows]
        values = {"query": query, "signature": signature, "results": results}
        return json.dumps(values, ensure_ascii=False) + "\n"
    if form == "trec":
        return "".join(f"{query} Q0 {key} {r} {score!r} {tag}\n" for r, (key, score) in rows)
    return "".join(f"{query}\t{key}\t{rank}\t{score!r}\n" for rank, (key, score) in rows)


def make_distinct(scores: Sequence[float]) -> list[float]:
    """Return descending scores; some are lowered, so that all are distinct in float32.

    trec_eval reads scores as float32 and sorts documents with equal scores by identifier.
    """
    distinct_scores = list(scores)
    before = np.float32(np.inf)
    for index, single in enumerate(np.array(scores, dtype=np.float32)):
        if not single < before:
            single = np.nextafter(before, np.float32(-np.inf))
            distinct_scores[index] = float(single)
        before = single
    return distinct_scores


def _list_top_words(
    index: Index, weighting: Weighting, most: int, form: str, signature: str
) -> Iterator[str]:
    """Yield the lines of each document: at most `most` words, sorted by descending weight.

    Words of equal weight are in the order of their first use in all documents.
    """
    names = list(index.terms)
    terms = np.repeat(np.arange(len(names)), index.frequencies)  # (P,)
    weights = [weighting.impacts(term) for term in range(len(names))]
    scores = np.concatenate([np.empty(0), *weights])  # (P,)
    order = np.lexsort((terms, -scores, index.documents))
    starts = np.searchsorted(index.documents[order], np.arange(len(index.ids) + 1))
    for document, key in enumerate(index.ids):
        chosen = order[starts[document] : starts[document + 1]][:most].tolist()
        words = [
            {
                "word": names[terms[at]],
                "rank": rank,
                "score": float(scores[at]),
                "tf": int(index.counts[at]),
                "df": int(index.frequencies[terms[at]]),
            }
            for rank, at in enumerate(chosen, 1)
        ]
        if form == "tsv":
            yield "".join(f"{key}\t{w['rank']}\t{w['word']}\t{w['score']!r}\n" for w in words)
        else:
            found = {"document": key, "signature": signature, "words": words}
            yield json.dumps(found, ensure_ascii=False) + "\n"
