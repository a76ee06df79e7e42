"""`eval.metrics` of a recipe: in the recipe, while a task trains, and in `nlpkit eval`."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit.recipe.known import find_changes
from nlpkit.report import history, seeds
from tests import _tiny, _tiny_tasks
from tests._faults import Ended, Server, done
from tests._schema import validator
from tests.recipe.test_recipe import GOOD, resolve

TASK = GOOD.replace("name: cpm_ant}", "name: cpm_ant_nlu}")

_MCC = ("--set", "eval.metrics=[mcc, accuracy]", "--set", "train.best_by=mcc",
        "--set", "train.eval_every=2", "--set", "train.save_every=2")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_tasks.three(tmp_path_factory.mktemp("tasks"))


def _refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    for part in parts:
        assert part in ended.stderr.splitlines()[-1]


def _evaluations(run: Path) -> list[dict]:
    return [record for record in _tiny.metrics(run) if "held_out" in record]


def test_eval_metrics_are_written_out_as_names_whatever_the_list_looks_like() -> None:
    flow = resolve(TASK + "eval: {metrics: [rouge:tokenize=zh,variant=rouge1, mcc]}\n")
    block = resolve(TASK + "eval:\n  metrics:\n    - rouge:tokenize=zh,variant=rouge1,mcc\n")
    names = ["rouge:tokenize=zh,variant=rouge1", "mcc"]
    assert flow.recipe.eval.metrics == block.recipe.eval.metrics == names
    assert flow.origin["eval.metrics.0"] == "r.yaml:8"
    assert block.origin["eval.metrics.1"] == "r.yaml:10"
    again = resolve(flow.to_yaml())
    assert find_changes(flow.dump(), again.dump()) == find_changes(flow.dump(), block.dump()) == []
    validator().validate(flow.dump())


@pytest.mark.parametrize("section", ["", "eval:\n", "eval: {}\n", "eval: {metrics: null}\n"])
def test_eval_metrics_are_the_tasks_own_by_default(section: str) -> None:
    found = resolve(TASK + section)
    assert found.recipe.eval.metrics is None
    assert found.dump()["eval"]["metrics"] is None
    if "null" not in section:
        assert found.origin["eval.metrics"] == "default"
    validator().validate(found.dump())


def test_eval_metrics_changed_are_named() -> None:
    one, two = (resolve(TASK, f"eval.metrics=[{names}]").dump() for names in ("mcc", "mcc,f1"))
    assert find_changes(one, two) == ["eval.metrics.1"]
    # One value that becomes a list is one change.
    text = {"lora": {"targets": "all-linear"}}
    more = {"lora": {"targets": ["all-linear", "token_embedding"]}}
    assert find_changes(text, more) == ["lora.targets"]


def test_eval_metrics_are_checked_without_torch() -> None:
    code = "import sys; from pathlib import Path; from nlpkit.recipe import parse; "
    code += f"parse({(TASK + 'eval: {metrics: [mcc, bleu]}').encode()!r}, 'r.yaml', Path('.')); "
    code += "assert not {'torch', 'transformers', 'accelerate'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_task_is_judged_by_eval_metrics_in_training_and_by_eval(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    from sklearn import metrics

    path, run = folder / "nlu.yaml", tmp_path / "run"
    arguments = ("finetune", path, "--out", run, *_MCC)
    ended = done(server.run(*arguments))
    found = _evaluations(run)
    assert [list(record["held_out"]["metrics"]) for record in found] == [["mcc", "accuracy"]] * 4
    mcc = {r["step"]: r["held_out"]["metrics"]["mcc"] for r in found}
    best = max(mcc, key=lambda step: (mcc[step], -step))
    assert (run / "checkpoints/best").resolve().name == f"step-{best:08d}"
    assert f"best held-out mcc {mcc[best]:.4f} at step {best}, in fp32" in ended.stderr
    # A checkpoint of the run is judged as the run was; the command line wins.
    predictions = tmp_path / "p.jsonl"
    evaluated = json.loads(done(server.run("eval", run, "--json", "--device", "cpu",
                                            "--predictions", predictions)).stdout)  # fmt: skip
    assert evaluated["metrics"] == found[best // 2 - 1]["held_out"]["metrics"]
    rows = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
    pairs = [r["target"] for r in rows], [r["prediction"] for r in rows]
    expected = metrics.matthews_corrcoef(*pairs)
    assert evaluated["metrics"]["mcc"] == pytest.approx(expected, abs=1e-12)
    data = folder / "nlu.train.jsonl"
    other = json.loads(done(server.run("eval", run, "--json", "--data", data)).stdout)
    assert list(other["metrics"]) == ["mcc", "accuracy"]
    chosen = json.loads(done(server.run("eval", run, "--json", "--metrics", "f1")).stdout)
    assert list(chosen["metrics"]) == ["f1"]
    told = json.loads(done(server.run("plan", path, "--json", "--no-probe", *_MCC)).stdout)
    assert told["settings"]["eval"]["metrics"] == ["mcc", "accuracy"]
    assert told["origin"]["eval.metrics.0"] == "command line"
    # Other scores for a run that has begun are a change like any other.
    more = server.run("finetune", path, "--out", run, *_MCC, "--set", "eval.metrics=[mcc]")
    assert more.code == 2
    assert 'eval.metrics.1: "accuracy" then, not set now' in more.stderr


@pytest.mark.slow
def test_seeds_are_summarised_by_eval_metrics(server: Server, folder: Path, tmp_path: Path) -> None:
    arguments = ("finetune", folder / "classes.yaml", "--seeds", "2", "--out", tmp_path, *_MCC)
    figures = json.loads(done(server.run(*arguments, "--json")).stdout)["figures"]
    assert list(figures) == ["loss", "mcc", "accuracy"]
    runs = [_evaluations(tmp_path / f"seed-{seed}") for seed in (1, 2)]
    best = [max(record["held_out"]["metrics"]["mcc"] for record in run) for run in runs]
    assert figures["mcc"]["values"] == best
    assert figures["mcc"]["mean"] == statistics.fmean(best)


@pytest.mark.slow
def test_written_text_is_judged_by_eval_metrics(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    sets = ("--set", "eval.metrics=[rouge:tokenize=zh,variant=rouge1, cer]")
    done(server.run("finetune", folder / "nlg.yaml", "--out", tmp_path, *sets))
    assert all("metrics" not in record["held_out"] for record in _evaluations(tmp_path))
    found = json.loads(done(server.run("eval", tmp_path, "--json")).stdout)
    names = ["rouge:tokenize=zh,variant=rouge1", "cer"]
    assert list(found["metrics"]) == names
    asked = server.run("eval", tmp_path, "--json", "--metrics", ",".join(names))
    assert json.loads(done(asked).stdout) == found


@pytest.mark.parametrize(
    ("recipe", "sets", "parts"),
    [
        ("cpm_ant/tiny.yaml", ["eval.metrics=[mcc]"],
         ["eval.metrics: objective cpm_ant has no answers to score"]),
        ("gpt/tiny.yaml", ["eval.metrics=[bleu]"],
         ["eval.metrics: objective clm has no answers to score; remove the setting"]),
        ("nlu.yaml", ["eval.metrics=[mcc]", "train.best_by=accuracy"],
         ["train.best_by: objective cpm_ant_nlu has no accuracy", "it has loss, mcc"]),
        ("nlu.yaml", ["train.best_by=accuracyy"],
         ["--set train.best_by: objective cpm_ant_nlu has no accuracyy during training, did you "
          "mean accuracy?"]),
        ("nlg.yaml", ["eval.metrics=[bleu]", "train.best_by=bleu"],
         ["train.best_by: objective cpm_ant_nlg has no bleu during training; it has loss"]),
        ("nlu.yaml", ["eval.metrics=[wer]", "train.best_by=wer"],
         ["train.best_by: wer is an error rate"]),
        ("classes.yaml", ["eval.metrics=[mcc, pearson]"],
         ["eval.metrics: pearson cannot score answers such as bad, good, so so"]),
        ("classes.yaml", ["eval.metrics=[f1:average=binary]"],
         ["eval.metrics: f1:average=binary cannot score", "needs two classes, there are 3"]),
    ],
)  # fmt: skip
def test_eval_metrics_that_do_not_fit_the_objective_are_refused_before_training(
    server: Server, folder: Path, tmp_path: Path, recipe: str, sets: list[str], parts: list[str]
) -> None:
    verb = "pretrain" if "/" in recipe else "finetune"
    words = [word for each in sets for word in ("--set", each)]
    ended = server.run(verb, folder / recipe, "--out", tmp_path / "run", *words, "-q")
    _refused(ended, *parts)
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.slow
def test_scores_that_the_answers_turn_out_not_to_have_are_named_with_the_setting(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    # Rows of up to four options; that one of the first two is right does not show before.
    sets = ("--set", "eval.metrics=[f1:average=binary]")
    ended = server.run("finetune", folder / "nlu.yaml", "--out", tmp_path / "nlu", *sets)
    _refused(ended, "eval.metrics: f1:average=binary: average binary needs two classes")
    sets = ("--set", "eval.metrics=[spearman]")
    done(server.run("finetune", folder / "nlg.yaml", "--out", tmp_path / "nlg", *sets))
    ended = server.run("eval", tmp_path / "nlg")
    _refused(ended, "eval.metrics: spearman cannot score answers such as ")


def test_seeds_judged_by_different_scores_are_summarised_where_all_have_them(
    tmp_path: Path,
) -> None:
    for name, scores in (("one", {"accuracy": 0.5}), ("two", {"mcc": 0.25, "accuracy": 1.0})):
        (tmp_path / name).mkdir()
        record = {"step": 1, "held_out": {"loss": 2.0, "metrics": scores}}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        (tmp_path / name / "recipe.yaml").write_text("name: x\n")
    runs = [history.read(tmp_path / name, name) for name in ("one", "two")]
    found = seeds.summary((1, 2), [run.chosen["metrics"] for run in runs])["figures"]
    assert found["accuracy"]["mean"] == 0.75
    assert found["mcc"] == {"mean": None, "median": None, "std": None, "values": [None, 0.25]}
    assert "undefined" in seeds.table({"seeds": [1, 2], "figures": found})
