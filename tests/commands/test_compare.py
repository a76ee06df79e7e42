"""`nlpkit compare`: an experiment to its verdict, what is refused, what goes on."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nlpkit import cli, registry
from nlpkit.commands import _compare, _runs
from nlpkit.commands._options import Common
from nlpkit.data.settings import Config as Data
from nlpkit.evaluate import experiment_table as table
from nlpkit.evaluate import suite
from nlpkit.evaluate.experiment import Expectation, Experiment
from nlpkit.recipe.sections import Tokenizer
from nlpkit.report import history
from nlpkit.train.log import Log
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
    change("claim: Wider is better", "first_seed: 7")
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
    for seed, value in zip((7, 8), narrow["bits_per_character"]["values"], strict=True):
        lines = Path(f"runs/mine/narrow/seed-{seed}/metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["held_out"]["bits_per_character"] == value
        assert f"seed: {seed}\n" in Path(f"runs/mine/narrow/seed-{seed}/recipe.yaml").read_text()
    assert found["expectations"][1]["verdict"] == "reproduced"
    assert found["seconds_left"] == 0
    assert "narrow/seed-7" in Path("runs/mine/report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.jsonl")}
    assert compare() == 0  # nothing is trained again, not what diverged either
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("metrics.jsonl")} == before
    printed = capsys.readouterr().out
    assert "wild       0 of 2, 2 diverged" in printed
    assert "narrow better than wild by loss: reproduced (p = 0.17)" in printed

    status = Path("runs/mine/wide/seed-8/run.json")
    said = (
        "warning: conditions.wide: seed-8 read other data, or with another tokenizer, than seed-7"
    )
    kept = status.read_text()
    status.write_text(json.dumps(json.loads(kept) | {"data": "changed since"}))
    assert compare("--so-far") == 0
    assert said in capsys.readouterr().err
    status.write_text(kept)
    lost = Path("runs/mine/wide/seed-8/metrics.jsonl").rename("lost")
    assert compare("--so-far") == 4  # and not: worse than every other run
    assert "wide/seed-8: nothing to report" in capsys.readouterr().err
    lost.rename("runs/mine/wide/seed-8/metrics.jsonl")

    # What a version without `evaluates` has recorded: each default, and not that key.
    state = json.loads(Path("runs/mine/experiment.json").read_text())
    for each in state["file"]["conditions"].values():
        assert "evaluates" not in each
        each |= {"from": None, "lora": None, "data": {}}
    Path("runs/mine/experiment.json").write_text(json.dumps(state))
    assert compare("--so-far") == 0

    change("level: 0.2", "level: 0.1")
    assert compare() == 2
    said = capsys.readouterr().err
    assert said == (
        "mine.yaml:13:15: rule.level: has changed since the first run (runs/mine); a new "
        "experiment needs another name\n"
    )


@pytest.mark.slow
def test_conditions_tune_the_run_of_the_same_seed_at_a_searched_rate(capsys) -> None:
    change("  wild: {recipe: tiny.yaml, train: {lr: 1.0e+30, clip: null}}\n", (
        "  tuned: {recipe: tiny.yaml, from: narrow, rates: [1.0e-3, 1.0e-2], train: {steps: 2}}\n"
        "  other: {recipe: tiny.yaml, from: narrow, rates: [1.0e-9, 1.0e-8], train: {steps: 2}}\n"
    ))  # fmt: skip
    change("  - {better: narrow, than: wild}\n", "  - {better: tuned, than: other}\n")
    change("seeds: 2", "seeds: 1\nfirst_seed: 7")
    assert compare("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conditions"]["tuned"]["rate"] in (1e-3, 1e-2)
    assert found["expectations"][1]["difference"] is None  # one seed
    base, tuned = (found["conditions"][name]["parameters"] for name in ("narrow", "tuned"))
    assert tuned == base  # planned with the model of its base
    run = Path("runs/mine/tuned/seed-7/recipe.yaml").read_text()
    assert "init_from: runs/mine/narrow/seed-7" in run
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
        (
            "{hidden_size: 64}",
            "{hidden_size: 64}, trian: {lr: 1}",
            ": unknown setting, did you mean train?",
        ),
        ("better: wide", "better: wid", "expect.0: no condition wid, did you mean wild?"),
        ("tokens: 1000", "tokens: 10", "mine.yaml:8:17: equal.tokens: a step of wide has more: 2"),
        ("tokens: 1000", "flops: 10", "mine.yaml:8:16: equal.flops: a step of wide has more: "),
        ("better: wide", "better: xyz", "no condition xyz; known: wide, narrow, wild"),
        (
            "by: bits_per_character",
            "by: accurcy",
            "expect.0.by: no 'accurcy', did you mean accuracy?",
        ),
        (
            "by: bits_per_character",
            'by: "accuracy, f1:average=macro"',
            "expect.0.by: 'accuracy, f1:average=macro' is 2 figures; give one",
        ),
        ("by: bits_per_character", "by: bits", "wer; loss, perplexity, bits_per_character, pairs"),
        (
            "by: bits_per_character",
            "by: pairs",
            "mine.yaml:11:38: expect.0.by: wide has no pairs; name their files: ",
        ),
        (
            "by: bits_per_character",
            "by: accuracy",
            "expect.0.by: wide has no accuracy; it has loss, ",
        ),
        ("seeds: 2", "seeds: 2\nparameters: 0.05", "parameters: sizes differ by more than 0.05"),
        ("{tokens: 1000}", "{tokens: 1000, steps: 3}", "give one of steps, tokens, words, time"),
        (
            "recipe: tiny.yaml}",
            "recipe: tinny.yaml}",
            "conditions.narrow.recipe: tinny.yaml: no such recipe, did you mean tiny.yaml?",
        ),
        (
            "by: bits_per_character",
            "by: bits_per_charcter",
            "expect.0.by: no 'bits_per_charcter', did you mean bits_per_character?",
        ),
        ("than: narrow, by", "than: [wide], by", "compares wide with itself"),
        ("seeds: 2", "seeds: 2\nrates: [1.0e-3, 1.0e-3]", "rates: expected two or more rates"),
        (
            "lr: 1.0e+30, clip: null}}",
            "clip: null}}\nrates: [1.0e-3, 2.0e-3]\ndata: {valid: [], valid_fraction: 0.05}",
            "mine.yaml:8:15: data.valid: needed beside rates: their search holds ",
        ),
        ("tiny.yaml}", "tiny.yaml, rates: [2.0e-3]}", "narrow.rates: expected two or more rates"),
        ("{tokens: 1000}", "{time: soon}", "equal.time: 'soon' is not a time such as 90s"),
        (
            "{tokens_per_step: 256}",
            "{tokens_per_step: 256, steps: 9}",
            "mine.yaml:7:38: train.steps: equal.tokens decides it; remove one of the two",
        ),
        (
            "{lr: 1.0e+30, clip: null}}",
            "{budget_clock: cpu, lr: 1.0e-3}}\nrates: [1.0e-3, 2.0e-3]",
            "mine.yaml:6:51: conditions.wild.train.budget_clock: equal.tokens decides it; remove "
            "one of the two\nmine.yaml:6:60: conditions.wild.train.lr: rates decides it; ",
        ),
        (
            "seeds: 2",
            "seeds: 2\neval: {pairs: [gone]}",
            "mine.yaml:10:16: eval.pairs.0: no such file: gone; looked in ",
        ),
        ("tiny.yaml, model", "tiny.yaml, from: narrow, model", "wide.from: narrow is no run befo"),
        (
            "train: {tokens",
            "  tuned: {recipe: tiny.yaml, from: widl}\ntrain: {tokens",
            "mine.yaml:7:36: conditions.tuned.from: widl is no condition before it, and no "
            "checkpoint, did you mean wild?",
        ),
        # No data of its own: no file is looked for.
        pytest.param("seeds: 2", "seeds: 2\nfolder: none", None, marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{recipe", "{from: wi-ld, recipe", "mine.yaml:5:19: conditions.nar-row.from: wi-ld is no"),
        ("{recipe", "{data: {train: [x]}, recipe", "mine.yaml:5:30: conditions.nar-row.1.data."),
    ],
)
def test_names_of_conditions_may_have_dots_and_hyphens(old: str, new: str, said: str, capsys):
    name = said.partition(".data")[0].partition(".from")[0].partition("conditions.")[2]
    text = EXPERIMENT.replace("narrow", name).replace("wild", "wi-ld")
    Path("mine.yaml").write_text(text.replace(f"  {name}: {old}", f"  {name}: {new}"))
    assert compare("--dry-run") in (2, 4)
    assert said in capsys.readouterr().err


def test_a_mistake_that_is_found_by_a_plan_names_its_line(capsys) -> None:
    Path("broken.jsonl").write_text('{"text": "天地人山水花鸟鱼"}\n{\n', encoding="utf-8")
    change("seeds: 2", "seeds: 2\ndata: {valid: [broken.jsonl]}")
    assert compare("--dry-run") == 3
    assert "mine.yaml:10:15: data.valid: broken.jsonl:2: broken JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "kinds", "said"),
    [("auto", "bf16 fp32", True), ("auto", "bf16 bf16", False), ("fp32", "bf16 fp32", False)],
)
def test_what_auto_chose_for_the_plan_is_the_precision_of_all_seeds(
    asked: str, kinds: str, said: bool, monkeypatch, capsys
) -> None:
    """A run by itself times batches; on a busy machine one of several seeds was in fp32."""
    chosen = iter(kinds.split())

    def probe(function, *_):
        plan = {"steps": 9, "tokens": 256, "seconds_per_step": 1, "parameters": 9}
        plan |= {"evaluation_seconds": 0, "saving_seconds": 0, "peak_memory_bytes": 9}
        return plan | {"trained_parameters": 9, "precision": f"{next(chosen)} (as timed)"}

    monkeypatch.setattr(_compare, "call", probe)
    lines = EXPERIMENT.splitlines(keepends=True)
    Path("mine.yaml").write_text("".join(line for line in lines if "wild" not in line))
    change("train: {", f"train: {{precision: {asked}, ")
    found, document = suite.read(Path("mine.yaml"), "mine.yaml", Experiment)
    runs = _compare.Runs(found, document, Path("out"), ".", Common())
    runs.plan(Log(1))
    for name, kind in zip(("wide", "narrow"), kinds.split(), strict=True):
        for run in runs.make_series(name).list_runs():
            expected = kind if asked == "auto" else asked
            assert run.resolved.recipe.train.precision == expected
    assert ("auto has chosen bf16 and fp32 for conditions" in capsys.readouterr().err) == said


@pytest.mark.parametrize("level", [0.05, pytest.param(0.2, marks=pytest.mark.slow)])
def test_seeds_that_allow_no_verdict_are_told_before_the_first_run(level: float, capsys) -> None:
    change("seeds: 2", "seeds: 2\nparameters: 0.05")  # refused when it is planned
    change("level: 0.2", f"level: {level}")
    assert compare("--dry-run") == 2
    said = "warning: seeds: 2: too few for a verdict on what is better"  # p is 1/6 at least
    assert (said in capsys.readouterr().err) == (level == 0.05)


TUNED = """\
name: mine
conditions:
  base: {recipe: gpt2, model: {family: gpt2, hidden_size: 32, num_layers: 1, num_heads: 2}}
  rank: {recipe: gpt1_classify, from: base, lora: {rank: 2, targets: [c_attn]}}
  other: {recipe: gpt1_classify, from: base, lora: {rank: 4, targets: [c_attn]}}
tokenizer: {vocab_size: 400}
equal: {steps: 2}
seeds: 1
expect:
  - {better: rank, than: other, by: accuracy}
"""


def _plan(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...] = (), **objectives: str) -> None:
    """Plan the file with made-up runs, of these objectives and sizes of vocabularies."""
    found, document = suite.read(Path("mine.yaml"), "mine.yaml", Experiment)
    runs = _compare.Runs(found, document, Path("runs"), "", Common())
    runs.state["plans"] = {name: {"parameters": 9} for name in found.conditions}

    def make_series(name: str) -> SimpleNamespace:
        part = SimpleNamespace(predicts_text="classification" not in objectives.values())
        recipe = SimpleNamespace(
            objective=[SimpleNamespace(name=objectives.get(name, "clm"), objective=part)],
            tokenizer=None,
            data=Data(**{"train": ["t"], "valid": ["v"]} | found.conditions[name].data),
            eval=SimpleNamespace(pairs=found.conditions[name].eval.get("pairs")),
        )
        if sizes:
            size = sizes[[*found.conditions].index(name)]
            recipe.tokenizer = Tokenizer.model_validate({"kind": "bpe", "vocab_size": size})
        run = SimpleNamespace(resolved=SimpleNamespace(recipe=recipe))
        calls = {"list_trials": lambda rates: [], "check": lambda runs: None}
        return SimpleNamespace(rates=(), list_runs=lambda: [run], **calls)

    monkeypatch.setattr(runs, "make_series", make_series)
    runs.plan(Log(0))


def test_what_is_not_of_conditions_that_are_all_tuned_is_warned_of(monkeypatch, capsys) -> None:
    Path("base").mkdir()
    change("{recipe: tiny.yaml", "{from: base, recipe: tiny.yaml")
    change("seeds: 2", "seeds: 2\nparameters: 0.05")
    _plan(monkeypatch)  # their sizes are not compared
    err = capsys.readouterr().err
    for place in ("8:8: equal", "10:13: parameters", "7:8: train"):
        assert f"mine.yaml:{place}: has no effect: all conditions have from\n" in err
    assert err.count("no effect") == 3


def test_losses_of_other_objectives_are_warned_of(monkeypatch, capsys) -> None:
    _plan(monkeypatch)
    assert "targets" not in capsys.readouterr().err
    _plan(monkeypatch, narrow="mlm", wild="mlm")
    said = "expect.0.by: bits_per_character of clm and of mlm: their targets may differ"
    err = capsys.readouterr().err
    assert (said in err, err.count("targets")) == (True, 1)
    change("than: wild", "than: [wild, narrow]")
    _plan(monkeypatch, wide="mlm", narrow="mlm", wild="mlm")
    assert "targets" not in capsys.readouterr().err
    change("than: [wild, narrow]", "than: wild")
    change("by: bits_per_character", "by: accuracy")
    _plan(monkeypatch, narrow="mlm", wild="mlm")
    assert "targets" not in capsys.readouterr().err


def test_losses_a_token_of_other_tokenizers_are_warned_of(monkeypatch, capsys) -> None:
    said = "expect.0.by: loss is of tokens, of other tokenizers; take bits_per_character"
    change("by: bits_per_character", "by: loss")
    for count, sizes in ((1, (300, 400, 400)), (0, (300, 300, 300))):
        _plan(monkeypatch, sizes)
        assert capsys.readouterr().err.count(said) == count
    _plan(monkeypatch, (300, 400, 400), **dict.fromkeys(("narrow", "wide"), "classification"))
    assert said not in capsys.readouterr().err
    change("by: loss", "by: bits_per_character")
    _plan(monkeypatch, (300, 400, 400))
    assert said not in capsys.readouterr().err


def test_figures_of_other_held_out_data_are_warned_of(monkeypatch, capsys) -> None:
    said = "expect.0.by: bits_per_character is of other held-out data on each side\n"
    change("narrow: {recipe: tiny.yaml}", "narrow: {recipe: tiny.yaml, data: {train: u}}")
    _plan(monkeypatch)
    assert "held-out" not in capsys.readouterr().err
    change("data: {train: u}", "data: {valid: w}")
    _plan(monkeypatch)
    err = capsys.readouterr().err
    assert (said in err, err.count("held-out")) == (True, 2)  # narrow is also better than wild
    change("data: {valid: w}", "data: {train: u, valid: [], valid_fraction: 0.1}")
    _plan(monkeypatch)
    assert said in capsys.readouterr().err
    change("data: {train: u, valid: [], valid_fraction: 0.1}", "eval: {pairs: [p]}")
    _plan(monkeypatch)
    assert "held-out" not in capsys.readouterr().err
    change("by: bits_per_character", "by: pairs")
    _plan(monkeypatch)
    assert "expect.0.by: pairs is of other held-out data" in capsys.readouterr().err


@pytest.mark.slow
def test_adapters_are_planned_on_the_untrained_base(capsys) -> None:
    Path("mine.yaml").write_text(TUNED)
    assert cli.run(["compare", "mine.yaml", "--dry-run"]) == 0
    # A (2, 32) and B (96, 2) of the one layer, and the layer of two classes (2, 32).
    assert " parameters, 320 of them trained, " in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("figure", "evaluates", "said"),
    [
        ("accuracy", False, None),
        ("loss.lm", False, None),
        (
            "pearson",
            False,
            "pearson cannot score answers such as yes, no: the prediction of row 1: 'yes'",
        ),
        ("perplexity", False, "has no perplexity; it has loss, loss.task, loss.lm"),
        ("loss.mlm", False, "has no loss.mlm; it has loss, loss.task, loss.lm"),
        ("accuracy", True, "has the same accuracy as the runs that it evaluates"),
    ],
)
def test_figures_that_an_objective_cannot_have(figure, evaluates, said) -> None:
    task = registry.load("objectives", "classification").Objective
    made = task.__new__(task)
    made.config = SimpleNamespace(setting={"labels": ["yes", "no"]}.get)
    made.parts, made.predicts_text = ("task", "lm"), False
    plan = SimpleNamespace(data=SimpleNamespace(objective=made, held_out=[1]))
    lack = _compare._find_lack(figure, plan, evaluates)
    assert lack == said or (said is not None and lack is not None and lack.startswith(said))


def test_a_score_among_the_parts_is_no_loss_and_may_be_compared() -> None:
    assert Expectation(better=["one"], than=["two"], by="reward_accuracy").by == "reward_accuracy"
    objective = registry.load("objectives", "dpo").Objective
    made = objective.__new__(objective)
    plan = SimpleNamespace(data=SimpleNamespace(objective=made, held_out=[1]))
    lack = _compare._find_lack("loss.reward_accuracy", plan, False)
    assert lack == (
        "has no loss.reward_accuracy; it has loss, loss.dpo, loss.reward_margin, reward_accuracy"
    )


def test_a_loss_of_other_targets_is_not_in_the_table() -> None:
    def run(objective: dict[str, str]) -> history.History:
        final = {"loss": 2.0, "bits_per_character": 3.0, "losses": {}, "metrics": {"pairs": 0.6}}
        return history.History("", Path(), {"finished": True}, objective, [], {1: final})

    objectives = {
        "wide": {"objective.name": '"clm"'},
        "narrow": {"objective.name": '"clm"'},
        "wild": {"objective.0.name": '"clm"', "objective.1.name": '"mlm"'},
    }
    other = {"objective.name": '"mixture"', "objective.of.0.name": '"clm"'}
    assert run(other).objectives == ['"mixture"', '"clm"']
    measured = {
        name: table.Measured([run(each)], 1, {}, None, 0, frozenset())
        for name, each in objectives.items()
    }
    change("  - {better: narrow, than: wild}\n", "  - {better: narrow, than: wild, by: pairs}\n")
    found, _ = suite.read(Path("mine.yaml"), "mine.yaml", Experiment, [])
    rows = table.describe(found, measured)["conditions"]
    assert [row["bits_per_character"]["mean"] for row in rows.values()] == [3.0, 3.0, None]
    assert [row["pairs"]["mean"] for row in rows.values()] == [0.6] * 3


WRITTEN = """\
name: mine
conditions:
  greedy: {recipe: seq2seq}
  beams: {evaluates: greedy, eval: {beam: 3, length_penalty: 0.0}}
  unnamed: {recipe: seq2seq}
model: {hidden_size: 32, embedding_size: 16}
tokenizer: {vocab_size: 300}
data: {train: [{files: [a.en, a.zh]}], valid: [{files: [a.en, a.zh]}]}
equal: {steps: 30}
seeds: 1
expect:
  - {better: beams, than: greedy, by: "chrf:word_order=2"}
"""


def write_pairs() -> None:
    for language in ("en", "zh"):
        Path(f"a.{language}").write_text("".join(f"the dog saw {n}\n" for n in "abcdefgh"))


@pytest.mark.slow
def test_scores_of_written_text_are_those_of_eval_with_the_settings_of_each_condition(
    capsys,
) -> None:
    write_pairs()
    Path("mine.yaml").write_text(WRITTEN)
    assert compare("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["signatures"]["generation"] for each in found["conditions"].values()] == [
        "beam:1",
        "beam:3|length_penalty:0",
        "beam:1",  # no expectation names this condition
    ]
    assert not Path("runs/mine/beams/seed-1/checkpoints").exists()  # nothing was trained
    run, options = "runs/mine/greedy/seed-1/checkpoints/latest", ["--beam=3", "--length-penalty=0"]
    for name, more in (("greedy", []), ("beams", options)):
        assert cli.run(["eval", run, "--metrics=chrf:word_order=2", "--json", "-q", *more]) == 0
        scores = json.loads(capsys.readouterr().out)["metrics"]
        assert found["conditions"][name]["chrf:word_order=2"]["values"] == [
            scores["chrf:word_order=2"]
        ]
    assert found["seconds_left"] == 0
    assert "beams/seed-1" not in Path("runs/mine/report.html").read_text()  # greedy's curve

    before = Path("runs/mine/beams/seed-1/scores.json").stat().st_mtime_ns
    assert compare() == 0
    assert Path("runs/mine/beams/seed-1/scores.json").stat().st_mtime_ns == before
    assert "beams: chrf:word_order=2 " in capsys.readouterr().out


def test_a_condition_whose_rates_all_diverge_has_diverged_and_what_it_begins() -> None:
    change("seeds: 2", "seeds: 2\nrates: [1.0e+29, 1.0e+30]")
    change("train: {tokens", "  tuned: {recipe: tiny.yaml, from: wild}\ntrain: {tokens")
    found, _ = suite.read(Path("mine.yaml"), "mine.yaml", Experiment)
    for rate in ("1e+29", "1e+30"):
        trial = Path(f"runs/wild/search/lr-{rate}")
        trial.mkdir(parents=True)
        (trial / "run.json").write_text('{"diverged": true}')
    plans = {name: {"seconds": 1.0} for name in found.trained}
    measured = table.measure(found, Path("runs"), {"plans": plans, "rates": {}})
    for name, count in (("wild", 2), ("tuned", 2), ("narrow", 0)):
        assert [*measured[name].list_values("loss")] == ["seed-1", "seed-2"][:count]
    assert [measured[name].left for name in ("wild", "narrow")] == [0, 4]
    state = {"plans": {}, "rates": {}}
    result = table.describe(found, table.measure(found, Path("runs"), state))
    assert "wild       0 of 2, 2 diverged" in table.format_table(result)
    assert result["expectations"][1]["final"] is False  # `narrow` is still to be trained


def test_runs_that_began_with_other_weights_of_one_path_are_warned_of(tmp_path, capsys) -> None:
    for name, start, sha256 in (("a", "base", "0"), ("b", "base", "1"), ("c", "own", "2")):
        (tmp_path / name).mkdir()
        source = {"source": {"path": start, "sha256": sha256}}
        (tmp_path / name / "run.json").write_text(json.dumps(source))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/run.json").write_text('{"source": null}')
    _runs.Runner(Log(1)).warn_of_other_bases(tmp_path / name for name in "abcd")
    said = f"warning: base: {tmp_path}/b began with other weights of it than {tmp_path}/a\n"
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith(said)


def test_what_is_only_evaluated_takes_no_training() -> None:
    Path("mine.yaml").write_text(WRITTEN)
    found, _ = suite.read(Path("mine.yaml"), "mine.yaml", Experiment)
    state = {"plans": {"greedy": {"seconds": 5.0}}, "rates": {}}
    measured = table.measure(found, Path("runs"), state)
    assert table.describe(found, measured)["seconds_left"] == 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("beam: 3", "baem: 3", "mine.yaml:4:10: conditions.beams: evaluates excludes baem; set"),
        (
            "greedy, eval",
            "greedy, from: a, eval",
            "evaluates excludes from; set beam, length_penalty",
        ),
        ("beam: 3", "beam: x", "mine.yaml:4:43: conditions.beams.eval.beam: expected an integer"),
        ("evaluates: greedy", "evaluates: gredy", "conditions.beams.evaluates: gredy is no run"),
        (
            "recipe: seq2seq",
            "recipe: gpt2",
            "expect.0.by: beams has no chrf:word_order=2; it has loss, loss.clm, ",
        ),
        ('"chrf:word_order=2"', "loss", "expect.0.by: beams has the same loss as the runs"),
        ('"chrf:word_order=2"', "chrf:n=2", "expect.0.by: chrf has no option 'n'"),
    ],
)
def test_mistakes_about_what_is_evaluated(old: str, new: str, said: str, capsys) -> None:
    write_pairs()
    text = WRITTEN.replace(old, new)
    if "gpt2" in new:
        text = "".join(
            line
            for line in text.splitlines(True)
            if line.partition(":")[0] not in ("model", "data")
        )
    Path("mine.yaml").write_text(text)
    assert compare("--dry-run") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("record", ["{}", '{"file": 1}', '{"file": {"epochs": 3}}'])
def test_a_file_of_another_program_is_no_record_of_an_experiment(record: str, capsys) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/experiment.json").write_text(record)
    assert compare("--so-far") == 4
    assert capsys.readouterr().err == (
        "nlpkit: runs/mine/experiment.json: no record of this experiment; give another --out\n"
    )
    assert compare("--so-far", "--out", "mine.yaml") == 4
    assert capsys.readouterr().err == "nlpkit: mine.yaml: is a file, not a directory\n"


def test_equal_cpu_time_is_a_budget_on_the_clock_of_the_process() -> None:
    narrow, wide = {"recipe": "tiny.yaml"}, {"recipe": "tiny.yaml", "from": "narrow"}
    expected = [{"better": "wide", "than": "narrow"}]
    given = {"name": "timed", "conditions": {"narrow": narrow, "wide": wide}, "expect": expected}
    experiment = Experiment.model_validate(given | {"equal": {"cpu_time": "20m"}})
    assert experiment.list_changes("narrow", "")[-2:] == [
        'train.budget="20m"',
        'train.budget_clock="cpu"',
    ]
    assert "budget" not in str(experiment.list_changes("wide", ""))
    experiment = Experiment.model_validate(given | {"equal": {"time": "20m"}})
    assert experiment.list_changes("narrow", "")[-1] == 'train.budget_clock="training"'


def test_search_of_a_rate_is_not_chosen_by_pairs_which_it_has_not() -> None:
    change("lr: 1.0e+30, ", "")
    change("seeds: 2", "seeds: 2\nrates: [1.0e-3, 2.0e-3]\neval: {pairs: [p]}")
    change("tokens_per_step: 256", "tokens_per_step: 256, best_by: pairs")
    found, document = suite.read(Path("mine.yaml"), "mine.yaml", Experiment)
    series = _compare.Runs(found, document, Path("runs"), "", Common()).make_series("wide")
    for runs, best_by in (
        (series.list_trials(series.rates), "loss"),
        (series.list_runs(), "pairs"),
    ):
        assert {run.resolved.recipe.train.best_by for run in runs} == {best_by}


def test_all_pairs_judge_conditions_of_any_cost_unless_their_number_is_given() -> None:
    few = {"recipe": "tiny.yaml", "eval": {"pairs": ["p"], "max_pairs": 9}}
    every = {"recipe": "tiny.yaml", "eval": {"pairs": ["p"]}}
    conditions = {"few": few, "every": every, "none": {**few, "eval": {}}}
    conditions["own"] = {"recipe": "own.yaml"}  # which may name pairs itself
    given = {"name": "judged", "conditions": conditions}
    expected = [{"better": "few", "than": side, "by": "pairs"} for side in ("every", "own")]
    experiment = Experiment.model_validate(given | {"expect": expected})
    found = [str(experiment.list_changes(name, "")) for name in conditions]
    assert "eval.max_pairs=9" in found[0]
    assert 'eval.max_pairs="all"' in found[1]
    assert "max_pairs" not in found[2]
    assert 'eval.max_pairs="all"' in found[3]
