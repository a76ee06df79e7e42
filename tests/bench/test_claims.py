"""The claims of bench/claims/: verdicts by rule, commands that resume. Nothing is trained."""

import json
import sys
from argparse import Namespace
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
CLAIMS = BENCH / "claims"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """Return how to import a module of bench/ and bench/claims/, loaded anew."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.syspath_prepend(str(CLAIMS))
    for file in (*BENCH.glob("*.py"), *CLAIMS.glob("*.py")):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return import_module


@pytest.mark.parametrize(
    ("claimed", "other", "p", "verdict"),
    [
        # By hand: of the 20 ways to choose 3 of 6, only the real one has a sum of 15.
        ([6, 5, 4], [3, 2, 1], 1 / 20, "reproduced"),
        # Sums of at least 14: 6 + 5 + 4 and 6 + 5 + 3.
        ([6, 5, 3], [4, 2, 1], 2 / 20, "inconclusive"),
        ([3, 1, 2], [5, 6, 4], 1, "not reproduced"),
        ([2, 2, 2], [2, 2, 2], 1, "inconclusive"),
        # Two seeds each have 6 ways: too few for a verdict.
        ([4, 3], [2, 1], 1 / 6, "inconclusive"),
    ],
)
def test_comparison_verdict_is_that_of_the_permutation_test(bench, claimed, other, p, verdict):
    comparison = bench("_claims").Comparison(claimed, other)
    assert comparison.p() == pytest.approx(p)
    assert comparison.verdict == verdict


def test_comparison_error_is_that_of_a_difference_of_means(bench):
    comparison = bench("_claims").Comparison([0.5, 0.7], [0.1, 0.5])
    assert comparison.difference == pytest.approx(0.3)
    # Variances 0.02 and 0.08, divided by 2 seeds each: sqrt(0.05).
    assert comparison.error == pytest.approx(0.05**0.5)


def test_comparison_of_a_single_seed_has_no_error_and_no_verdict(bench):
    claims = bench("_claims")
    cells = claims.row("task", claims.Comparison([0.5], [0.25]))
    assert cells == ["task", "0.500", "0.250", "+0.250", "0.50", "inconclusive"]


@pytest.mark.parametrize(
    ("nsp_nsp", "nsp_sop", "sop_nsp", "sop_sop", "verdict"),
    [
        (0.905, 0.520, 0.789, 0.865, "reproduced"),  # Lan et al. 2020, table 5
        (0.905, 0.520, 0.789, 0.505, "inconclusive"),  # SOP itself is not learned
        (0.905, 0.600, 0.789, 0.865, "not reproduced"),
        (0.905, 0.520, 0.505, 0.865, "not reproduced"),
    ],
)
def test_sentences_verdict_follows_its_rule(bench, nsp_nsp, nsp_sop, sop_nsp, sop_sop, verdict):
    claim = bench("sentences")
    given = {
        ("nsp", "nsp"): nsp_nsp, ("nsp", "sop"): nsp_sop,
        ("sop", "nsp"): sop_nsp, ("sop", "sop"): sop_sop,
    }  # fmt: skip
    # A coin's standard error for 2,500 pairs is 0.01, so that 0.505 is not above chance.
    scores = {key: claim.Scores([value - 0.001, value], 2500) for key, value in given.items()}
    assert claim.verdict(scores) == verdict


def test_sentences_verdict_with_seeds_on_both_sides_is_inconclusive(bench):
    claim = bench("sentences")
    good = claim.Scores([0.9, 0.9], 2500)
    scores = {("nsp", "nsp"): good, ("sop", "sop"): good, ("nsp", "sop"): claim.Scores([0.5], 2500)}
    scores["sop", "nsp"] = claim.Scores([0.51, 0.53], 2500)
    assert claim.verdict(scores) == "inconclusive"


def test_figures_are_made_once_and_not_kept_if_a_command_fails(bench, tmp_path):
    runs = bench("_runs").Runs(tmp_path, tmp_path)

    def fail():
        raise SystemExit("nlpkit: exit 1")

    with pytest.raises(SystemExit):
        runs.kept(tmp_path / "a", fail)
    assert runs.kept(tmp_path / "a", lambda: {"loss": 1.5}) == {"loss": 1.5}
    assert runs.kept(tmp_path / "a", fail) == {"loss": 1.5}


def test_lstm_claim_lower_is_better_and_the_slower_model_is_asked_at_the_faster_ones_time(bench):
    claim = bench("lstm")
    cells = claim.lower("bits", [1.5, 1.25, 1.0], [2.5, 2.25, 2.0])
    assert cells[1:] == ["1.250 ± 0.250", "2.250 ± 0.250", "+1.000 ± 0.204", "0.05", "reproduced"]
    # By hand: 3/4 of 200 steps are 150, half way between 2.0 and 1.0.
    assert claim.at_time_of([100, 200], [2.0, 1.0], 0.75) == pytest.approx(1.5)


def test_lstm_claim_cuts_the_text_in_three_without_a_document_in_two(bench, tmp_path):
    claim = bench("lstm")
    lines = [json.dumps({"text": f"document {number}"}) + "\n" for number in range(45)]
    (tmp_path / "articles.jsonl").write_text("".join(lines))
    claim.write_texts(Namespace(out=tmp_path))
    found = {
        name: (tmp_path / f"{name}.jsonl").read_text().splitlines(keepends=True)
        for name in ("train", "choose", "test")
    }
    assert {name: len(part) for name, part in found.items()} == {
        "train": 39, "choose": 3, "test": 3
    }  # fmt: skip
    assert sorted(chain(*found.values())) == sorted(lines)
