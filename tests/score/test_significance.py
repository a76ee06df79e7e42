"""Confidence intervals and paired tests against sacrebleu 2.6.0 and against exact arithmetic."""

import itertools
import json
import random
import tracemalloc

import numpy as np
import pytest
from sacrebleu import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sklearn.metrics import f1_score, matthews_corrcoef

from nlpkit import cli
from nlpkit.errors import DataError, UsageError
from nlpkit.score import significance
from nlpkit.score.metrics import bleu, chrf
from nlpkit.score.significance import (
    paired_approximate_randomization,
    paired_bootstrap,
    read_seed,
    sign,
)

FLOAT32 = 1e-6  # relative: sacrebleu's bootstrap computes precisions in float32


def systems(seed: int, lines: int = 150) -> tuple[list[list[str]], list[str]]:
    """Return three systems, the second about as good as the first, and the reference."""
    rng = random.Random(seed)
    words = [f"w{index}" for index in range(40)]
    reference = [" ".join(rng.choices(words, k=rng.randint(4, 25))) for _ in range(lines)]

    def noisy(share: float) -> list[str]:
        return [
            " ".join(w if rng.random() > share else rng.choice(words) for w in line.split())
            for line in reference
        ]

    return [noisy(0.30), noisy(0.30), noisy(0.36)], reference


def test_confidence_interval_of_bleu_is_that_of_sacrebleu() -> None:
    (hypotheses, *_), reference = systems(1)
    peer = BLEU()
    expected = peer.corpus_score(hypotheses, [reference], n_bootstrap=500)
    rows = bleu.statistics(hypotheses, [reference])
    (found,) = paired_bootstrap([rows], bleu.from_sums, samples=500)
    assert found.p_value is None
    assert found.mean == pytest.approx(expected._mean, rel=FLOAT32)
    assert found.half_width == pytest.approx(expected._ci, rel=100 * FLOAT32)
    signature = sign(bleu.score(hypotheses, [reference]).signature, "bs", 500, 12345)
    assert signature == str(peer.get_signature())


@pytest.mark.parametrize("seed", [2, 3])
def test_paired_bootstrap_is_that_of_sacrebleu(seed: int) -> None:
    hypotheses, reference = systems(seed)
    named = [(str(index), lines) for index, lines in enumerate(hypotheses)]
    signatures, scores = PairedTest(
        named, {"BLEU": BLEU(references=[reference])}, None, "bs", n_samples=300
    )()
    rows = [list(bleu.statistics(lines, [reference])) for lines in hypotheses]
    found = paired_bootstrap(rows, bleu.from_sums, samples=300)
    for ours, theirs in zip(found, scores["BLEU"], strict=True):
        assert ours.score == theirs.score
        assert ours.p_value == theirs.p_value
        assert ours.mean == pytest.approx(theirs.mean, rel=FLOAT32)
        assert ours.half_width == pytest.approx(theirs.ci, rel=100 * FLOAT32)
    plain = bleu.score(hypotheses[0], [reference]).signature
    assert sign(plain, "bs", 300, 12345) == str(signatures["BLEU"])


@pytest.mark.parametrize("seed", [4, 5])
def test_approximate_randomization_of_bleu_is_that_of_sacrebleu(seed: int) -> None:
    hypotheses, reference = systems(seed)
    named = [(str(index), lines) for index, lines in enumerate(hypotheses)]
    signatures, scores = PairedTest(
        named, {"BLEU": BLEU(references=[reference])}, None, "ar", n_samples=1000
    )()
    rows = [list(bleu.statistics(lines, [reference])) for lines in hypotheses]
    found = paired_approximate_randomization(rows, bleu.from_sums, samples=1000)
    expected = [(result.score, None, None, result.p_value) for result in scores["BLEU"]]
    assert [tuple(tested) for tested in found] == expected
    plain = bleu.score(hypotheses[0], [reference]).signature
    assert sign(plain, "ar", 1000, 12345) == str(signatures["BLEU"])


def test_paired_tests_of_chrf_are_those_of_sacrebleu() -> None:
    hypotheses, reference = systems(6, lines=40)
    named = [(str(index), lines) for index, lines in enumerate(hypotheses)]
    rows = [list(chrf.statistics(lines, [reference])) for lines in hypotheses]
    for kind, test in (("bs", paired_bootstrap), ("ar", paired_approximate_randomization)):
        _, scores = PairedTest(
            named, {"CHRF": CHRF(references=[reference])}, None, kind, n_samples=200
        )()
        found = test(rows, chrf.from_sums, samples=200)
        assert [f.p_value for f in found] == [result.p_value for result in scores["chrF2"]]
        assert [f.score for f in found] == [result.score for result in scores["chrF2"]]


def test_samples_drawn_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses, reference = systems(7, lines=101)
    rows = [list(bleu.statistics(lines, [reference])) for lines in hypotheses]
    whole = [
        test(rows, bleu.from_sums, samples=203)
        for test in (paired_bootstrap, paired_approximate_randomization)
    ]
    monkeypatch.setattr(significance, "_CELLS", 500)
    monkeypatch.setattr(significance, "_LINES", 10)
    pieces = [
        test(rows, bleu.from_sums, samples=203)
        for test in (paired_bootstrap, paired_approximate_randomization)
    ]
    assert pieces == whole


def test_bootstrap_of_large_counts_is_exact_where_float32_is_not() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(10**6, 2 * 10**6, size=(50, 1))
    indices = np.random.default_rng(12345).choice(50, size=(80, 50), replace=True)
    exact = sorted(rows[indices][:, :, 0].sum(1).tolist())
    rounded = sorted(rows.astype("float32")[indices][:, :, 0].sum(1).tolist())
    assert exact != rounded
    (found,) = paired_bootstrap([rows.tolist()], lambda sums: float(sums[0]), samples=80)
    assert found.mean == sum(exact) / 80
    assert found.half_width == (exact[-3] - exact[2]) / 2


def test_paired_tests_of_a_system_against_itself_find_nothing() -> None:
    hypotheses, reference = systems(8, lines=30)
    rows = list(bleu.statistics(hypotheses[0], [reference]))
    for test in (paired_bootstrap, paired_approximate_randomization):
        assert test([rows, rows], bleu.from_sums, samples=99)[1].p_value == 1


def test_randomization_has_the_p_value_of_all_exchanges() -> None:
    # Eight lines, right (1) or wrong (0): many exchanges have just the real difference.
    first, other = np.array([[1, 1, 1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0, 1, 0]])
    signs = np.array(list(itertools.product((1, -1), repeat=8)))
    exact = float(np.mean(abs(signs @ (first - other)) >= abs((first - other).sum())))
    for unit in (1, 0.1):  # sums of tenths are rounded
        rows = [[(x * unit,) for x in system.tolist()] for system in (first, other)]
        found = paired_approximate_randomization(rows, lambda sums: sums[0] / 8, samples=20_000)
        assert found[1].p_value == pytest.approx(exact, abs=0.02)
    assert exact == 0.625


def test_randomization_of_f1_knows_the_classes_of_both_systems(tmp_path, capsys) -> None:
    # Each system writes a label that the other one does not: all exchanges, by scikit-learn.
    right = list("xyxyxyxx")
    one, other = list("xyxyxyax"), list("zxxxyyxy")
    for name, lines in (("ref", right), ("one", one), ("other", other)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    names = [str(tmp_path / name) for name in ("ref", "one", "other")]
    for metric, score in (
        ("f1", lambda lines: f1_score(right, lines, average="macro", zero_division=0)),
        ("mcc", lambda lines: matthews_corrcoef(right, lines)),
    ):
        gaps = []
        for taken in itertools.product((0, 1), repeat=8):
            sides = zip(one, other, taken, strict=True)
            mixed = [(b, a) if swap else (a, b) for a, b, swap in sides]
            gaps.append(abs(score([a for a, _ in mixed]) - score([b for _, b in mixed])))
        exact = np.mean(np.array(gaps) >= gaps[0] - 1e-12)
        given = [metric, names[0], "-i", *names[1:], "-par", "--paired-ar-n", "4000", "-q"]
        assert cli.run(["score", *given, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found[-1]["p_value"] == pytest.approx(exact, abs=0.03)


@pytest.mark.slow
def test_paired_tests_of_many_lines_take_little_memory() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 30, size=(30_000, 10)).tolist() for _ in range(2)]
    tracemalloc.start()
    try:
        for test in (paired_bootstrap, paired_approximate_randomization):
            test(rows, lambda sums: sums[0] / 1e6, samples=320)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The indices of all samples alone would be 77 MB, the sums gathered by them 384 MB.
    assert peak < 40e6


def test_significance_refuses_what_cannot_be_tested() -> None:
    with pytest.raises(UsageError, match="0 samples"):
        paired_bootstrap([[(1, 2)]], sum, samples=0)
    with pytest.raises(DataError, match="no lines"):
        paired_bootstrap([[]], sum)
    with pytest.raises(DataError, match="1 and 2 lines"):
        paired_bootstrap([[(1,)], [(1,), (2,)]], sum)


def test_seed_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    assert read_seed() == 12345
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    assert read_seed() == 7
    monkeypatch.setenv("SACREBLEU_SEED", "None")
    assert read_seed() is None
    assert sign("nrefs:1|tok:13a", "bs", 10, None) == "nrefs:1|bs:10|seed:none|tok:13a"
    monkeypatch.setenv("SACREBLEU_SEED", "x")
    with pytest.raises(UsageError, match="SACREBLEU_SEED is 'x'"):
        read_seed()
