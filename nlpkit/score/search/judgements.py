"""Reads relevance judgements (qrels) and rankings (runs) in the formats of trec_eval and BEIR."""

from array import array
from collections.abc import Iterator

from nlpkit.errors import DataError
from nlpkit.plural import number_of
from nlpkit.score.files import display_name, read_lines

Qrels = dict[str, dict[str, int]]  # query -> document -> relevance
Rankings = dict[str, list[str]]  # query -> documents, best first


def read_qrels(path: str) -> Qrels:
    """Return the judgements: `query 0 document relevance`, or BEIR's `query document relevance`.

    BEIR's header (`query-id corpus-id score`) is skipped. Raise `DataError` for a malformed line,
    a document judged twice for a query, and a file without a judgement.
    """
    qrels: Qrels = {}
    lines: dict[str, dict[str, int]] = {}
    width = 0
    for number, place, fields in _read_rows(path):
        if not width and len(fields) == 3 and fields[2] == "score":
            width = 3
            continue
        if len(fields) not in (3, 4) or width not in (0, len(fields)):
            expected = {3: "query document relevance"}.get(width, "query 0 document relevance")
            raise DataError(f"{place}: {number_of(len(fields), 'columns')}; needs `{expected}`")
        width = len(fields)
        query, document, relevance = fields[0], fields[-2], fields[-1]
        _check_once(lines.setdefault(query, {}), query, document, place, number)
        try:
            qrels.setdefault(query, {})[document] = int(relevance)
        except ValueError as error:
            raise DataError(f"{place}: relevance {relevance!r} is no whole number") from error
    if not qrels:
        raise DataError(f"{display_name(path)}: holds no judgement")
    return qrels


def read_run(path: str) -> Rankings:
    """Return the rankings of a TREC run, lines of `query Q0 document rank score tag`.

    As in trec_eval, the order is by descending score, read as float32, then by descending document
    identifier; the rank column is ignored. Raise `DataError` for a malformed line, a document that
    a query has twice, and a file without a ranking.
    """
    # For each query: document → line, and the scores in the same order.
    run: dict[str, tuple[dict[str, int], array[float]]] = {}
    for number, place, fields in _read_rows(path):
        if len(fields) != 6:
            expected = "needs `query Q0 document rank score tag`"
            raise DataError(f"{place}: {number_of(len(fields), 'columns')}; {expected}")
        query, document = fields[0], fields[2]
        if query not in run:
            run[query] = {}, array("f")
        documents, scores = run[query]
        _check_once(documents, query, document, place, number)
        try:
            score = float(fields[4])
        except ValueError as error:
            raise DataError(f"{place}: score {fields[4]!r} is no number") from error
        if score != score:
            raise DataError(f"{place}: score {fields[4]!r} cannot be ranked")
        scores.append(score)
    if not run:
        raise DataError(f"{display_name(path)}: holds no ranking")
    return {
        query: [document for _, document in sorted(zip(scores, documents, strict=True))[::-1]]
        for query, (documents, scores) in run.items()
    }


def _read_rows(path: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, place and fields of each line that is not blank."""
    name = display_name(path)
    for number, line in enumerate(read_lines(path), 1):
        if fields := line.split():
            yield number, f"{name}:{number}", fields


def _check_once(lines: dict[str, int], query: str, document: str, place: str, number: int) -> None:
    if (first := lines.setdefault(document, number)) != number:
        what = f"document {document!r} of query {query!r} is already in line {first}"
        raise DataError(f"{place}: {what}")
