"""TF-IDF: the documents' formula by hand, the cosine equal to scikit-learn's."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nlpkit.errors import UsageError
from nlpkit.score.metrics import tfidf
from nlpkit.score.search import inverted_index
from nlpkit.score.search.ranking import Ranker
from tests._search_files import CRANFIELD, call, random_texts, write_jsonl, write_tsv

WORDS = [f"w{n}" for n in range(80)]
Capture = pytest.CaptureFixture[str]


def _ranker(texts: Sequence[str], variant: str) -> Ranker:
    index = inverted_index.build(((f"d{i}", text) for i, text in enumerate(texts)), str.split)
    return Ranker(index, tfidf.Weighting(index, variant))


def _cosines(texts: Sequence[str], queries: Sequence[str]) -> np.ndarray:
    """Return scikit-learn's cosines: (queries, documents)."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    vectors = text.TfidfVectorizer(analyzer=str.split)
    documents = vectors.fit_transform(texts)
    return (vectors.transform(queries) @ documents.T).toarray()


@pytest.mark.parametrize("seed", range(4))
def test_tfidf_sklearn_equals_the_cosine_of_scikit_learn(seed: int) -> None:
    rng = random.Random(seed)
    texts = random_texts(rng, 100, 30, WORDS)
    queries = random_texts(rng, 40, 8, [*WORDS, "unknown"])
    ranker = _ranker(texts, "sklearn")
    for query, expected in zip(queries, _cosines(texts, queries), strict=True):
        np.testing.assert_allclose(ranker.scores(query.split()), expected, rtol=0, atol=1e-12)
        hits = ranker.top(query.split(), 10)
        assert len(hits) == min(10, np.count_nonzero(expected))
        best = np.sort(expected)[::-1][: len(hits)]
        np.testing.assert_allclose([hit.score for hit in hits], best, rtol=0, atol=1e-12)


def test_tfidf_plain_score_is_that_of_hand_arithmetic() -> None:
    ranker = _ranker(["cat dog cat", "dog", "bird cat", "", "dog eel eel eel"], "plain")
    scores = ranker.scores(["cat", "eel", "eel"])
    cat, eel = math.log(5 / 3), math.log(5 / 2)
    expected = [2 / 3 * cat, 0, 1 / 2 * cat, 0, 2 * 3 / 4 * eel]
    np.testing.assert_allclose(scores, expected, rtol=1e-15)


def test_tfidf_without_smoothing_is_that_of_hand_arithmetic() -> None:
    texts = ["cat dog cat", "dog", "bird cat", "", "dog eel eel eel"]
    cat, eel = math.log(5 / 2), math.log(5 / 1)  # ln(N / df)
    by_length = [2 / 3 * cat, 0, 1 / 2 * cat, 0, 2 * 3 / 4 * eel]
    scores = _ranker(texts, "unsmoothed").scores(["cat", "eel", "eel"])
    np.testing.assert_allclose(scores, by_length, rtol=1e-15)
    # Manning, Raghavan and Schütze 2008, eq. 6.13: 1 + ln tf
    sublinear = [(1 + math.log(2)) * cat, 0, cat, 0, 2 * (1 + math.log(3)) * eel]
    scores = _ranker(texts, "sublinear").scores(["cat", "eel", "eel"])
    np.testing.assert_allclose(scores, sublinear, rtol=1e-15)


def test_tfidf_of_documents_alone_prints_the_top_words_of_each(
    tmp_path: Path, capsys: Capture
) -> None:
    docs = write_jsonl(tmp_path / "d.jsonl", ["cat dog cat", "dog", "dog eel bird eel", "", "ant"])
    assert call(tfidf, docs, "--top", "2") is None
    out, err = capsys.readouterr()
    # tf = count / length, idf = ln(N / (df + 1)): N 5; cat, eel, bird, ant in 1, dog in 3 of them
    rare, dog = math.log(5 / 2), math.log(5 / 4)
    expected = [
        ("d0", 1, "cat", 2 / 3 * rare),
        ("d0", 2, "dog", 1 / 3 * dog),
        ("d1", 1, "dog", dog),
        ("d2", 1, "eel", 2 / 4 * rare),
        ("d2", 2, "bird", 1 / 4 * rare),
        ("d4", 1, "ant", rare),
    ]
    rows = [line.split("\t") for line in out.splitlines()]
    assert [(d, int(r), w) for d, r, w, _ in rows] == [(d, r, w) for d, r, w, _ in expected]
    np.testing.assert_allclose([float(row[3]) for row in rows], [e[3] for e in expected], 1e-15)
    assert "tfidf|variant:plain|tok:word|case:lower|docs:5|" in err
    call(tfidf, docs, "--top", "1", "--format", "json", "--variant", "sublinear")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["document"] for each in found] == ["d0", "d1", "d2", "d3", "d4"]
    assert found[3]["words"] == []
    (eel,) = found[2]["words"]
    assert (eel["word"], eel["rank"], eel["tf"], eel["df"]) == ("eel", 1, 2, 1)
    assert eel["score"] == pytest.approx((1 + math.log(2)) * math.log(5), rel=1e-15)
    assert found[0]["signature"].startswith("tfidf|variant:sublinear|")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--query-format", "tsv"], "--query-format need QUERIES"),
        (["--format", "trec"], "--format trec and --query-format need QUERIES"),
    ],
)
def test_tfidf_of_documents_alone_refuses_what_needs_queries(
    tmp_path: Path, options: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        call(tfidf, write_jsonl(tmp_path / "d.jsonl", ["cat"]), *options)


def test_tfidf_plain_ranks_documents_of_common_words_below_zero(
    tmp_path: Path, capsys: Capture
) -> None:
    texts = ["cat dog", "cat", "cat cat dog bird"]
    files = write_jsonl(tmp_path / "d.jsonl", texts), write_tsv(tmp_path / "q.tsv", ["cat", "dog"])
    call(tfidf, *files, "--format", "tsv")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    # idf of cat: ln(3/4); of dog, in two of three: 0, and the order is that of the documents.
    expected = [("d0", 0.5), ("d2", 0.5), ("d1", 1.0)]
    for row, (document, share) in zip(rows, expected, strict=False):
        assert row[1] == document
        assert float(row[3]) == pytest.approx(share * math.log(3 / 4), rel=1e-15)
    assert [(row[1], float(row[3])) for row in rows[3:]] == [("d0", 0), ("d2", 0)]


@pytest.mark.parametrize("variant", tfidf.VARIANTS)
def test_tfidf_corpus_without_a_word_ranks_nothing(
    tmp_path: Path, capsys: Capture, variant: str
) -> None:
    files = write_jsonl(tmp_path / "d.jsonl", ["", ""]), write_tsv(tmp_path / "q.tsv", ["cat"])
    call(tfidf, *files, "--variant", variant)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"tfidf|variant:{variant}|tok:word|case:lower|docs:2|" in err


@pytest.mark.real_data
def test_tfidf_cranfield_ranking_is_that_of_scikit_learn(tmp_path: Path, capsys: Capture) -> None:
    from nlpkit.score.search.documents import Records

    docs = dict(Records(str(CRANFIELD / "cranfield.docs.jsonl")))
    queries = dict(Records(str(CRANFIELD / "cranfield.queries.jsonl")))
    files = (
        write_jsonl(tmp_path / "d.jsonl", docs.values()),
        write_tsv(tmp_path / "q.tsv", queries.values()),
    )
    call(tfidf, *files, "--variant", "sklearn", "--tokenize", "whitespace", "--format", "tsv")
    expected = _cosines([t.lower() for t in docs.values()], [t.lower() for t in queries.values()])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 225 * 10
    for query, document, rank, score in rows:
        cosines = expected[int(query[1:])]
        assert float(score) == pytest.approx(cosines[int(document[1:])], abs=1e-12)
        assert float(score) == pytest.approx(np.sort(cosines)[-int(rank)], abs=1e-12)
