"""`nlpkit compare`: an experiment to its verdict, what is refused, what goes on."""

import json
from pathlib import Path

import pytest

from nlpkit import cli
from tests import _tiny

EXPERIMENT = """\
name: mine
claim: Wider is better
conditions:
  wide: {recipe: tiny.yaml, model: {hidden_size: 64}}
  narrow: {recipe: tiny.yaml}
  wild: {recipe: tiny.yaml, train: {lr: 1.0e+30, clip: null}}
train: {tokens_per_step: 256}
equal: {tokens: 1000}
seeds: 2
expect:
  - {better: wide, than: narrow, by: bits_per_character}
  - {better: narrow, than: wild}
rule: {level: 0.2}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _tiny.write(tmp_path)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    return tmp_path


def compare(*arguments: str) -> int:
    return cli.run(["compare", "mine.yaml", "-q", *arguments])


def change(old: str, new: str) -> None:
    text = Path("mine.yaml").read_text()
    assert old in text
    Path("mine.yaml").write_text(text.replace(old, new))


def test_an_experiment_ends_in_a_table_verdicts_and_a_page(capsys) -> None:
    assert compare("--max-time", "1s") == 75  # planned, and stopped in the first run
    capsys.readouterr()
    assert compare("--so-far", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds_left"] > 0
    assert [each["verdict"] for each in found["expectations"]] == ["too few seeds"] * 2

    assert compare("--jobs", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    wide, narrow, wild = found["conditions"].values()
    assert wide["parameters"] > narrow["parameters"]
    assert (wide["finished"], wide["steps"], wild["diverged"]) == (2, 3, 2)  # 3 steps of 256
    for seed, value in zip((1, 2), narrow["bits_per_character"]["values"], strict=True):
        lines = Path(f"runs/mine/narrow/seed-{seed}/metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["held_out"]["bits_per_character"] == value
    assert found["expectations"][1]["verdict"] == "reproduced"
    assert found["seconds_left"] == 0
    assert "narrow/seed-1" in Path("runs/mine/report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.jsonl")}
    assert compare() == 0  # nothing is trained again, not what diverged either
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.jsonl")} == before
    printed = capsys.readouterr().out
    assert "wild       0 of 2, 2 diverged" in printed
    assert "narrow better than wild by loss: reproduced (p = 0.17)" in printed

    change("level: 0.2", "level: 0.1")
    assert compare() == 2
    said = capsys.readouterr().err
    assert said == (
        "mine.yaml:13:7: rule: has changed since the first run (runs/mine); a new experiment "
        "needs another name\n"
    )


def test_conditions_tune_the_run_of_the_same_seed_at_a_searched_rate(capsys) -> None:
    change("  wild: {recipe: tiny.yaml, train: {lr: 1.0e+30, clip: null}}\n", (
        "  tuned: {recipe: tiny.yaml, from: narrow, rates: [1.0e-3, 1.0e-2], train: {steps: 2}}\n"
        "  other: {recipe: tiny.yaml, from: narrow, rates: [1.0e-9, 1.0e-8], train: {steps: 2}}\n"
    ))  # fmt: skip
    change("  - {better: narrow, than: wild}\n", "  - {better: tuned, than: other}\n")
    change("seeds: 2", "seeds: 1")
    assert compare("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conditions"]["tuned"]["rate"] in (1e-3, 1e-2)
    assert found["expectations"][1]["difference"] is None  # one seed
    run = Path("runs/mine/tuned/seed-1/recipe.yaml").read_text()
    assert "init_from: runs/mine/narrow/seed-1" in run
    search = Path("runs/mine/tuned/search/lr-0.001/recipe.yaml").read_text()
    assert "valid_fraction: 0.1" in search


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "{hidden_size: 64}",
            "{hidden_siz: 64}",
            "mine.yaml:4:49: conditions.wide.model.hidden_siz: unknown setting, did you mean "
            "hidden_size?",
        ),
        ("better: wide", "better: wid", "expect.0: no condition wid; wide, narrow, wild"),
        (
            "by: bits_per_character",
            "by: accurcy",
            "expect.0.by: no 'accurcy', did you mean accuracy?",
        ),
        (
            "by: bits_per_character",
            "by: pairs",
            "mine.yaml:11:38: expect.0.by: wide has no pairs while it trains",
        ),
        (
            "by: bits_per_character",
            "by: accuracy",
            "expect.0.by: wide has no accuracy while it trains",
        ),
        ("seeds: 2", "seeds: 2\nparameters: 0.05", "parameters: sizes differ by more than 0.05"),
        ("{tokens: 1000}", "{tokens: 1000, steps: 3}", "give one of steps, tokens, words, time"),
        ("recipe: tiny.yaml}", "recipe: tinny.yaml}", "tinny.yaml"),
        ("seeds: 2", "seeds: 2\nfolder: none", None),  # no data of its own: no file is looked for
    ],
)
def test_mistakes_are_named_before_the_first_run(old: str, new: str, said: str, capsys) -> None:
    change(old, new)
    code = compare("--dry-run")
    printed = capsys.readouterr()
    assert printed.out == ""
    if said is None:
        assert code == 0
    else:
        assert code in (2, 4)
        assert said in printed.err
    assert not list(Path().rglob("metrics.jsonl"))


def test_scores_of_written_text_are_refused_as_no_run_has_them_while_it_trains(capsys) -> None:
    tuned = "{recipe: cpm_ant_nlg, from: narrow}"
    change("{recipe: tiny.yaml, train: {lr: 1.0e+30, clip: null}}", tuned)
    change("{better: narrow, than: wild}", "{better: wild, than: narrow, by: bleu}")
    assert compare() == 2
    assert "expect.1.by: wild has no bleu while it trains" in capsys.readouterr().err
