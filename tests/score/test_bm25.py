"""BM25: equal to bm25s in its five variants, by hand in the sixth; ranks, ties, output, speed."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
import pytest

from nlpkit.score.metrics import bm25, ir
from nlpkit.score.search import inverted_index
from nlpkit.score.search.command import make_distinct
from nlpkit.score.search.ranking import Ranker, _select_best
from tests._search_files import CRANFIELD, call, random_texts, write_jsonl, write_tsv

WORDS = [f"w{n}" for n in range(60)]
# By hand: lengths 3, 1, 2, 0, so the mean is 1.5; cat is in d0 (twice) and d2, dog in d0 and d1.
SMALL = ["cat dog cat", "dog", "bird cat", ""]


def _index(texts: Sequence[str]) -> inverted_index.Index:
    return inverted_index.build(((f"d{i}", text) for i, text in enumerate(texts)), str.split)


def _peer(texts: Sequence[str], variant: str, **parameters: float) -> bm25s.BM25:
    peer = bm25s.BM25(method=variant, dtype="float64", **parameters)
    peer.index([text.split() for text in texts], show_progress=False)
    return peer


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("variant", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
@pytest.mark.parametrize(("k1", "b", "delta"), [(1.5, 0.75, 0.5), (0.9, 0.4, 1.0), (2.0, 1.0, 0.0)])
def test_bm25_equals_bm25s_for_every_document(
    variant: str, k1: float, b: float, delta: float
) -> None:
    rng = random.Random(f"{variant}{k1}")
    for round_ in range(4):
        texts = random_texts(rng, 40 * (round_ + 1), 30, WORDS)
        peer = _peer(texts, variant, k1=k1, b=b, delta=delta)
        own = {"delta": delta} if variant in ("bm25l", "bm25+") else {}
        index = _index(texts)
        ranker = Ranker(index, bm25.Weighting(index, bm25.Settings(variant, k1=k1, b=b, **own)))
        for query in random_texts(rng, 25, 8, [*WORDS, "unknown"]):
            known = [word for word in query.split() if word in index.terms]
            if known:
                np.testing.assert_allclose(
                    ranker.scores(query.split()), peer.get_scores(known), rtol=0, atol=1e-12
                )


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("variant", bm25.VARIANTS)
@pytest.mark.parametrize("top", [1, 3, 10, 500])
def test_bm25_top_is_the_sorted_scores_of_documents_with_a_word(variant: str, top: int) -> None:
    rng = random.Random(f"{variant}{top}")
    texts = random_texts(rng, 400, 12, WORDS)
    index = _index(texts)
    ranker = Ranker(index, bm25.Weighting(index, bm25.Settings(variant)))
    for query in random_texts(rng, 40, 6, [*WORDS, "unknown"]):
        words = query.split()
        scores = ranker.scores(words)
        holding = [d for d, text in enumerate(texts) if {*text.split()} & {*words}]
        if variant != "robertson-raw":
            # What the query's words give to every document is no hit.
            holding = [d for d in holding if scores[d] > 0]
        order = sorted(holding, key=lambda d: (-scores[d], d))[:top]
        hits = ranker.top(words, top)
        assert [hit.document for hit in hits] == order
        assert [hit.score for hit in hits] == [scores[d] for d in order]


def test_bm25_top_k_bound_finds_all_candidates_of_a_large_array() -> None:
    rng = np.random.default_rng(1)
    for spread in (3, 50, 10**6):  # few different values: many ties
        scores = rng.integers(0, spread, 5000).astype(np.float64)
        for most in (1, 7, 100, 1000):
            chosen = _select_best(scores, most, 0.5, 0.0)
            least = np.sort(scores)[::-1][most - 1]
            assert {*np.flatnonzero(scores >= max(least, 0.5))} <= {*chosen}
            if spread == 10**6 and most <= 100:
                assert len(chosen) < 1000


def test_bm25_lucene_score_is_that_of_hand_arithmetic() -> None:
    index = _index(SMALL)
    scores = Ranker(index, bm25.Weighting(index, bm25.Settings())).scores(["cat"])
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    # K = 1.5 (0.25 + 0.75 · 3 / 1.5) and 1.5 (0.25 + 0.75 · 2 / 1.5)
    expected = [idf * 2 / (2 + 2.625), 0, idf * 1 / (1 + 1.875), 0]
    np.testing.assert_allclose(scores, expected, rtol=1e-15)


def test_bm25_robertson_raw_is_the_documents_formula_and_negative_for_common_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["cat cat dog", "cat", "cat dog", "bird"]
    index = _index(texts)
    scores = Ranker(index, bm25.Weighting(index, bm25.Settings("robertson-raw"))).scores(["cat"])
    idf = math.log((4 - 3 + 0.5) / (3 + 0.5))
    mean = 7 / 4
    factor = [1.5 * (0.25 + 0.75 * length / mean) for length in (3, 1, 2)]
    expected = [idf * 2.5 * tf / (K + tf) for tf, K in zip((2, 1, 1), factor, strict=True)]
    np.testing.assert_allclose(scores, [*expected, 0], rtol=1e-14)
    assert idf < 0
    files = write_jsonl(tmp_path / "d.jsonl", texts), write_tsv(tmp_path / "q.tsv", ["cat"])
    call(bm25, *files, "--variant", "robertson-raw", "--format", "tsv")
    # The three that hold the word, the least negative first: of the idf 0.94 in d2, 1.16 in d0 and
    # 1.24 in d1; d3, at 0, holds none.
    names = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert names == ["d2", "d0", "d1"]
    call(bm25, *files, "--variant", "robertson")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("k3", "factor"), [(None, 3.0), (0.0, 1.0), (8.0, 9 * 3 / (8 + 3)), (1.2, 2.2 * 3 / 4.2)]
)
def test_bm25_k3_is_a_factor_of_repeated_words(k3: float | None, factor: float) -> None:
    index = _index(SMALL)
    ranker = Ranker(index, bm25.Weighting(index, bm25.Settings(k3=k3)))
    once, dog = ranker.scores(["cat"]), ranker.scores(["dog"])
    np.testing.assert_allclose(
        ranker.scores(["cat", "dog", "cat", "cat"]), factor * once + dog, rtol=1e-14
    )


def test_bm25_trec_run_has_full_scores_and_ties_in_document_order_for_trec_eval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    # d1 to d11 tie; by trec_eval's rule (names descending) d9 would be first, d1 last.
    texts = ["cat dog", *["cat bird"] * 11, "cat cat cat"]
    files = write_jsonl(tmp_path / "d.jsonl", texts), write_tsv(tmp_path / "q.tsv", ["cat dog"])
    call(bm25, *files, "--top", 20)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    order = [row[2] for row in rows]
    assert order == ["d0", "d12", *(f"d{n}" for n in range(1, 12))]
    assert [row[0] for row in rows] == ["q0"] * 13
    assert [row[3] for row in rows] == [str(rank) for rank in range(1, 14)]
    assert {row[5] for row in rows} == {"bm25-lucene-k1=1.5-b=0.75"}
    scores = {row[2]: float(row[4]) for row in rows}
    call(bm25, *files, "--top", 20, "--format", "tsv")
    exact = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len({row[3] for row in exact[2:]}) == 1
    assert [float(row[3]) for row in exact] == pytest.approx([*scores.values()], rel=1e-5)
    assert float(exact[0][3]) == scores["d0"]
    for rank, document in enumerate(order, 1):
        judge = pytrec_eval.RelevanceEvaluator({"q0": {document: 1}}, {"recip_rank"})
        assert judge.evaluate({"q0": scores})["q0"]["recip_rank"] == 1 / rank


def test_bm25_distinct_lowers_only_what_float32_cannot_tell_apart() -> None:
    scores = [2.0, 1.0 + 1e-9, 1.0, 1.0, 0.5, -0.5, -0.5]
    found = make_distinct(scores)
    assert [found[i] for i in (0, 1, 4, 5)] == [scores[i] for i in (0, 1, 4, 5)]
    singles = np.array(found, dtype=np.float32)
    assert (singles[1:] < singles[:-1]).all()
    assert max(abs(a - b) for a, b in zip(found, scores, strict=True)) < 2e-7
    assert make_distinct([]) == []
    assert make_distinct([3.0, 1.0]) == [3.0, 1.0]


def test_bm25_unknown_words_print_nothing_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        write_jsonl(tmp_path / "d.jsonl", SMALL),
        write_tsv(tmp_path / "q.tsv", ["eel", "", "cat"]),
    )
    call(bm25, *files, "--top", 1000)
    out, err = capsys.readouterr()
    assert [line.split()[2] for line in out.splitlines()] == ["d0", "d2"]
    assert "4 documents (1 without a word), 3 terms, mean length 1.50" in err
    assert "3 queries, 2 without a hit (2 without a known word)" in err
    assert "bm25|variant:lucene|k1:1.5|b:0.75|k3:none|tok:word|case:lower|docs:4|" in err
    call(bm25, *files, "-q", "--format", "json")
    out, err = capsys.readouterr()
    assert [len(json.loads(line)["results"]) for line in out.splitlines()] == [0, 0, 2]
    assert err == ""


def test_bm25_corpus_without_a_word_divides_by_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_jsonl(tmp_path / "d.jsonl", ["", "..."]), write_tsv(tmp_path / "q.tsv", ["cat"])
    for variant in bm25.VARIANTS:
        call(bm25, *files, "--variant", variant)
        out, err = capsys.readouterr()
        assert out == ""
        assert "2 documents (2 without a word), 0 terms, mean length 0.00" in err


def test_bm25_imports_numpy_and_no_library_of_scores(tmp_path: Path) -> None:
    files = write_jsonl(tmp_path / "d.jsonl", SMALL), write_tsv(tmp_path / "q.tsv", ["cat"])
    program = (
        "import argparse, sys\n"
        "from nlpkit.score.metrics import bm25, ir, tfidf\n"
        "for tool in (bm25, tfidf):\n"
        "    parser = argparse.ArgumentParser()\n"
        "    tool.add_arguments(parser)\n"
        "    tool.run(parser.parse_args(sys.argv[1:]))\n"
        "heavy = ('torch', 'transformers', 'scipy', 'sklearn', 'bm25s', 'pydantic', 'rjieba')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "assert 'numpy' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.real_data
def test_bm25_cranfield_measures_equal_ir_measures_on_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    qrels, run = CRANFIELD / "cranfield.qrels.txt", tmp_path / "run.txt"
    files = CRANFIELD / "cranfield.docs.jsonl", CRANFIELD / "cranfield.queries.jsonl"
    call(bm25, *files, "--top", "1000")
    ranking, err = capsys.readouterr()
    run.write_text(ranking)
    first = call(ir, qrels, run)
    out = capsys.readouterr().out
    assert "1,400 documents (2 without a word)" in err
    names = ["nDCG@10", "AP", "RR", "P@10", "R@100"]
    theirs = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in names],
        list(ir_measures.read_trec_qrels(str(qrels))),
        list(ir_measures.read_trec_run(str(run))),
    )
    values = {str(measure): value for measure, value in theirs.items()}
    assert out.splitlines()[1].split()[2:] == [f"{values[name]:.4f}" for name in names]
    assert first == pytest.approx(values["nDCG@10"], abs=1e-12)
    # That the ranking is worth something at all: measured, 0.3661.
    assert first == pytest.approx(0.366, abs=0.001)
