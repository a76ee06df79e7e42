"""Measures of rankings: equal to trec_eval through ir_measures, and by hand; files, averages."""

import gzip
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit.errors import NlpkitError, UsageError
from nlpkit.score.metrics import ir
from nlpkit.score.search.judgements import read_qrels, read_run
from nlpkit.score.search.measures import parse, parse_all
from tests._search_files import call

Capture = pytest.CaptureFixture[str]
NAMES = (
    *("nDCG", "nDCG@1", "nDCG@3", "nDCG@10", "AP", "AP@3", "AP(rel=2)", "RR", "RR(rel=3)"),
    *("P@1", "P@5", "P@50", "P(rel=2)@5", "R@1", "R@5", "R@50", "Success@1", "Success@5", "Rprec"),
)
QRELS = "1 0 a 1\n1 0 b 0\n1 0 c 2\n2 0 a 1\n3 0 z 1\n"
RUN = (
    "1 Q0 b 1 3.0 t\n1 Q0 c 2 2.0 t\n1 Q0 x 3 1.0 t\n1 Q0 a 4 0.5 t\n"
    "2 Q0 b 1 1.0 t\n9 Q0 a 1 1.0 t\n"
)


def _random_files(folder: Path, seed: int) -> tuple[Path, Path]:
    """Write judgements of -1 to 3 and a run with ties, also of float32 alone, in no order."""
    rng = random.Random(seed)
    documents = [f"d{n}" for n in range(40)] + ["文档", "Z", "z"]
    qrels, run = [], []
    for query in range(30):
        if query % 10 != 9:
            for document in rng.sample(documents, rng.randint(1, 30)):
                relevance = rng.choice([-1, 0, 1, 2, 3] if query % 7 else [0])
                qrels.append(f"q{query} 0 {document} {relevance}")
        if query % 10 != 8:
            for document in rng.sample(documents, rng.randint(1, 35)):
                score = rng.choice([rng.randint(0, 9), rng.random(), 1 + rng.random() * 1e-8, -2.5])
                run.append(f"q{query} Q0 {document} 0 {score!r} tag")
    rng.shuffle(qrels)
    rng.shuffle(run)
    paths = folder / f"{seed}.qrels", folder / f"{seed}.run"
    paths[0].write_text("\n".join(qrels) + "\n", encoding="utf-8")
    paths[1].write_text("\n".join(run) + "\n", encoding="utf-8")
    return paths


@pytest.mark.parametrize("seed", range(6))
def test_ir_values_of_each_query_equal_trec_eval(
    tmp_path: Path, capsys: Capture, seed: int
) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    qrels, run = _random_files(tmp_path, seed)
    call(ir, qrels, run, "-m", *NAMES, "--json", "--per-query")
    found = json.loads(capsys.readouterr().out)
    theirs = ir_measures.pytrec_eval.iter_calc(
        [ir_measures.parse_measure(name) for name in NAMES],
        list(ir_measures.read_trec_qrels(str(qrels))),
        list(ir_measures.read_trec_run(str(run))),
    )
    ranked = {*read_run(str(run))}
    checked = 0
    for metric in theirs:
        # Their values of queries that the run does not have are zeros.
        if metric.query_id in ranked:
            ours = found["per_query"][metric.query_id][str(metric.measure)]
            assert ours == pytest.approx(metric.value, abs=1e-12), metric
            checked += 1
    assert checked == len(NAMES) * found["queries"] == len(NAMES) * 24


@pytest.mark.parametrize("seed", range(3))
def test_ir_means_equal_ir_measures_over_all_queries_and_trec_eval_over_both(
    tmp_path: Path, capsys: Capture, seed: int
) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels, run = _random_files(tmp_path, seed)
    call(ir, qrels, run, "-m", *NAMES, "--json", "-c")
    out, err = capsys.readouterr()
    found = json.loads(out)
    theirs = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in NAMES],
        list(ir_measures.read_trec_qrels(str(qrels))),
        list(ir_measures.read_trec_run(str(run))),
    )
    assert found["scores"] == pytest.approx({str(m): v for m, v in theirs.items()}, abs=1e-12)
    assert found["averaged_over"] == "all queries with judgements"
    assert (
        "over all 27 queries with judgements, 0 for the 3 not in the run; left out: 3 without"
        in err
    )
    call(ir, qrels, run, "-m", "MAP", "nDCG@10", "--json")
    found = json.loads(capsys.readouterr().out)
    with open(qrels, encoding="utf-8") as judged, open(run, encoding="utf-8") as ranked:
        judge = pytrec_eval.RelevanceEvaluator(
            pytrec_eval.parse_qrel(judged), {"map", "ndcg_cut.10"}
        )
        values = judge.evaluate(pytrec_eval.parse_run(ranked)).values()
    assert found["queries"] == len(values) == 24
    for ours, name in (("AP", "map"), ("nDCG@10", "ndcg_cut_10")):
        mean = math.fsum(value[name] for value in values) / len(values)
        assert found["scores"][ours] == pytest.approx(mean, abs=1e-12)


def test_ir_measures_of_a_small_ranking_are_those_of_hand_arithmetic() -> None:
    judged = {"a": 1, "b": 0, "c": 2}
    ranking = ["b", "c", "x", "a"]
    values = {m.name: m.of(ranking, judged) for m in parse_all(NAMES)}
    assert values["P@1"] == 0
    assert values["P@5"] == 2 / 5
    assert values["R@5"] == 1
    assert values["RR"] == 1 / 2
    assert values["AP"] == (1 / 2 + 2 / 4) / 2
    assert values["AP@3"] == (1 / 2) / 2
    assert values["Rprec"] == 1 / 2
    assert values["AP(rel=2)"] == 1 / 2
    assert values["RR(rel=3)"] == 0
    expected = (2 / math.log2(3) + 1 / math.log2(5)) / (2 + 1 / math.log2(3))
    assert values["nDCG@10"] == values["nDCG"] == pytest.approx(expected, rel=1e-15)
    assert parse("RR@1").of(ranking, judged) == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("map", "AP"),
        ("MAP@5", "AP@5"),
        ("MRR@10", "RR@10"),
        ("Recall@100", "R@100"),
        ("precision@5", "P@5"),
        ("ndcg@10", "nDCG@10"),
        ("Hit@1", "Success@1"),
        ("P(rel=2)@5", "P(rel=2)@5"),
        ("p@05", "P@5"),
    ],
)
def test_ir_names_of_other_programs_are_taken(text: str, name: str) -> None:
    assert parse(text).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nDGC@10", "no measure 'nDGC@10', did you mean nDCG?; known: P@10, R@10, AP"),
        ("", "no measure ''"),
        ("AP@", "no measure 'AP@'"),
        ("P", "P: needs a depth, such as P@10"),
        ("P@0", "P@0: the depth is at least 1"),
        ("Rprec@5", "Rprec@5: Rprec takes no depth"),
        ("nDCG(rel=2)@5", "nDCG takes relevances as gains"),
        ("AP(rel=0)", "AP(rel=0): rel is at least 1"),
    ],
)
def test_ir_unknown_measure_is_an_error_with_the_nearest_name(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_ir_table_says_over_which_queries_it_averages(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "q").write_text(QRELS)
    (tmp_path / "r").write_text(RUN)
    value = call(ir, tmp_path / "q", tmp_path / "r", "-m", "RR", "P@1")
    out, err = capsys.readouterr()
    assert value == 0  # the lowest, for --fail-under
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        ["run", "queries", "RR", "P@1"],
        [str(tmp_path / "r"), "2", "0.2500", "0.0000"],
    ]
    assert "means over the 2 queries in both; not in the run: 1 with judgements" in err
    assert "left out: 1 without judgements" in err
    assert call(ir, tmp_path / "q", tmp_path / "r", "-m", "RR", "-c", "-q") == (1 / 2) / 3
    capsys.readouterr()
    call(ir, tmp_path / "q", tmp_path / "r", "-m", "RR,P@5", "AP", "--score-only", "-w", "2", "-q")
    assert capsys.readouterr() == ("0.25\t0.20\t0.25\n", "")


def test_ir_per_query_and_several_runs_are_rows(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "q").write_text(QRELS)
    (tmp_path / "r").write_text(RUN)
    (tmp_path / "s").write_text("1 Q0 a 1 1 t\n")
    call(ir, tmp_path / "q", tmp_path / "r", tmp_path / "s", "-m", "P@1", "--per-query")
    rows = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["query", "P@1"],
        ["1", "0.0000"],
        ["2", "0.0000"],
        ["all", "2", "0.0000"],
        ["1", "1.0000"],
        ["all", "1", "1.0000"],
    ]
    call(ir, tmp_path / "q", tmp_path / "r", tmp_path / "s", "--json", "-m", "P@1")
    first, second = json.loads(capsys.readouterr().out)
    assert (first["queries"], first["unranked"], first["unjudged"]) == (2, 1, 1)
    assert second["scores"] == {"P@1": 1.0}
    assert "per_query" not in first


def test_ir_run_is_ordered_by_float32_score_then_by_name_descending(tmp_path: Path) -> None:
    rows = [("b", "1.00000001"), ("c", "1"), ("a", "1e3"), ("d", "0.99"), ("e", "-1e-3")]
    (tmp_path / "r").write_text("".join(f"q Q0 {d} 1 {s} t\n" for d, s in rows))
    assert read_run(str(tmp_path / "r")) == {"q": ["a", "c", "b", "d", "e"]}


def test_ir_beir_qrels_with_header_gz_bom_and_crlf_are_read(tmp_path: Path) -> None:
    text = "query-id\tcorpus-id\tscore\r\n1\ta\t2\r\n\r\n2\tb\t0\r\n"
    (tmp_path / "q.tsv.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    assert read_qrels(str(tmp_path / "q.tsv.gz")) == {"1": {"a": 2}, "2": {"b": 0}}
    (tmp_path / "plain.tsv").write_text("1 a 1\n")
    assert read_qrels(str(tmp_path / "plain.tsv")) == {"1": {"a": 1}}


@pytest.mark.parametrize(
    ("qrels", "run", "code", "message"),
    [
        (None, RUN, 4, "q: no such file"),
        (QRELS, None, 4, "r: no such file"),
        ("", RUN, 3, "q: holds no judgement"),
        (QRELS, "\n", 3, "r: holds no ranking"),
        ("1 0 a\n1 0 b 1\n", RUN, 3, "q:1: relevance 'a' is no whole number"),
        (QRELS + "1 a 1\n", RUN, 3, "q:6: 3 columns; needs `query 0 document relevance`"),
        ("1 a 1\n1 0 b 1\n", RUN, 3, "q:2: 4 columns; needs `query document relevance`"),
        ("1 0 a 0.5\n", RUN, 3, "q:1: relevance '0.5' is no whole number"),
        (QRELS + "1 0 c 1\n", RUN, 3, "q:6: document 'c' of query '1' is already in line 3"),
        (QRELS, "1 Q0 a 1 1\n", 3, "r:1: 5 columns; needs `query Q0 document rank score tag`"),
        (QRELS, "1 Q0 a 1 x t\n", 3, "r:1: score 'x' is no number"),
        (QRELS, "1 Q0 a 1 nan t\n", 3, "r:1: score 'nan' cannot be ranked"),
        (QRELS, RUN + "1 Q0 b 9 0 t\n", 3, "r:7: document 'b' of query '1' is already in line 1"),
        (QRELS, "7 Q0 b 9 0 t\n", 3, "r: no query of it has judgements (its first is '7', theirs"),
        (QRELS, b"1 Q0 a\xff 1 1 t\n", 3, "r:1: not utf-8 text"),
    ],
)
def test_ir_malformed_file_is_one_line_and_its_exit_code(
    tmp_path: Path, qrels: str | None, run: str | bytes | None, code: int, message: str
) -> None:
    for name, text in (("q", qrels), ("r", run)):
        if text is not None:
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NlpkitError) as caught:
        call(ir, tmp_path / "q", tmp_path / "r")
    assert caught.value.exit_code == code
    assert str(caught.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "-"], r"stdin \(-\) can be read once only"),
        (["q", "r", "--json", "-b"], "--json and --score-only exclude each other"),
        (["q", "r", "--per-query", "-b"], "--per-query and --score-only exclude each other"),
    ],
)
def test_ir_wrong_option_is_told(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(ir, *arguments)


def test_ir_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "q").write_text(QRELS)
    (tmp_path / "r").write_text(RUN)
    program = (
        "import argparse, sys\n"
        "from nlpkit.score.metrics import ir\n"
        "parser = argparse.ArgumentParser()\n"
        "ir.add_arguments(parser)\n"
        "ir.run(parser.parse_args(['q', '-']))\n"
        "assert not {'numpy', 'torch', 'ir_measures', 'pydantic'} & {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=RUN, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == ["stdin", "2"]
