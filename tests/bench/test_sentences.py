"""The verdict of bench/sentences.py, and figures that a benchmark keeps. Nothing is trained."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from nlpkit import cli

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """Return how to import a module of bench/, loaded anew."""
    monkeypatch.syspath_prepend(str(BENCH))
    for file in BENCH.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return import_module


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


def test_sentences_without_runs_says_what_to_train(bench, tmp_path):
    (tmp_path / "nsp/seed-1").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"no runs .* train sop_nsp\.yaml first"):
        bench("sentences").ask(tmp_path)


SMALL = (
    *("train.steps=2", "train.warmup_ratio=0", "train.eval_every=null", "tokenizer.vocab_size=500"),
    *("model.hidden_size=32", "model.num_layers=1", "model.num_heads=2"),
    *("model.intermediate_size=32", "objective.0.max_length=64", "objective.1.max_length=64"),
)


@pytest.mark.slow
def test_sentences_asks_each_run_for_the_pairs_of_both(bench, tmp_path, capsys, monkeypatch):
    for name in ("nsp", "sop"):
        sets = [f"--set={each}" for each in (f"objective.0.name={name}", *SMALL)]
        out = str(tmp_path / name / "seed-1")
        assert cli.run(["pretrain", "bert", *sets, "--out", out, "-q"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["sentences.py", str(tmp_path)])
    bench("sentences").main()
    printed = capsys.readouterr().out
    for asked in ("nsp", "sop"):
        (score,) = re.findall(rf"^{asked} on {asked}: (0\.\d+)$", printed, re.M)
        held_out = json.loads(
            (tmp_path / asked / "seed-1/metrics.jsonl").read_text().splitlines()[-1]
        )
        # The run's own evaluation asks the same pairs.
        assert float(score) == pytest.approx(
            held_out["held_out"]["losses"][f"{asked}_accuracy"], abs=1e-3
        )
    assert len(re.findall(r"^(nsp|sop) on (nsp|sop): ", printed, re.M)) == 4
    assert printed.endswith("Verdict: inconclusive\n")


def test_figures_are_made_once_and_not_kept_if_a_command_fails(bench, tmp_path):
    runs = bench("_runs").Runs(tmp_path, tmp_path)

    def fail():
        raise SystemExit("nlpkit: exit 1")

    with pytest.raises(SystemExit):
        runs.kept(tmp_path / "a", fail)
    assert runs.kept(tmp_path / "a", lambda: {"loss": 1.5}) == {"loss": 1.5}
    assert runs.kept(tmp_path / "a", fail) == {"loss": 1.5}
