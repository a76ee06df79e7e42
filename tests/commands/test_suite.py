"""`nlpkit suite`: tasks tuned from a base and from nothing, what goes wrong, published files."""

import json
import re
import shutil
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.recipe import load
from tests import _published, _tiny_tasks

SMALL = ("train.steps=2", "train.tokens_per_step=256", "train.precision=fp32")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_tasks.start(tmp_path_factory.mktemp("suite"), "gpt2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _tiny_tasks.write_rows(tmp_path / "train.jsonl", _tiny_tasks.rows_of("classes", 60, 1))
    _tiny_tasks.write_rows(tmp_path / "valid.jsonl", _tiny_tasks.rows_of("classes", 13, 2))
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nsuite:\n  seeds: 2\n  tasks:\n"
        "  - {name: tone, recipe: gpt1_classify, objective: {max_length: 32}}\n"
        "objective: {lm_weight: 0}\n"
        "data: {train: [train.jsonl], valid: [valid.jsonl]}\n"
    )
    return tmp_path


def suite(*arguments: str) -> int:
    sets = [part for each in SMALL for part in ("--set", each)]
    return cli.run(["suite", *arguments, "-q", *sets])


def test_each_task_is_tuned_from_the_base_and_from_nothing_and_never_again(base, capsys):
    assert suite("mine.yaml", "--from", str(base), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    out = Path(f"runs/mine-{base.name}")
    assert (out / "suite.md").read_text().startswith(f"# mine: {base}\n\n| task | score | pretr")
    [row] = found["tasks"]
    assert row["task"] == "tone"
    assert row["counted_words"] > row["commonest_answer"]  # the class is the first character
    for side in ("pretrained", "from_nothing"):
        for seed, value in zip((1, 2), row[side]["values"], strict=True):
            run = out / "tone" / side / f"seed-{seed}"
            *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            assert last["held_out"]["metrics"]["accuracy"] == value
    assert row["difference"] in ("no difference seen", "differ")
    tuned, fresh = (load(str(out / f"tone/{side}/seed-2/recipe.yaml")).recipe
                    for side in ("pretrained", "from_nothing"))  # fmt: skip
    assert (tuned.init_from, fresh.init_from) == (str(base), None)
    of_base = load(str(base / "recipe.yaml")).recipe
    assert fresh.model == of_base.model
    assert fresh.train == tuned.train
    assert fresh.seed == tuned.seed == 2

    times = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    shutil.rmtree(out / "tone/from_nothing/seed-2")  # as if a kill had come before it
    assert suite("mine.yaml", "--from", str(base), "--json") == 0
    assert json.loads(capsys.readouterr().out) == found
    changed = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [out / "tone/from_nothing/seed-2/metrics.jsonl"]

    status = out / "tone/pretrained/seed-2/run.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"data": "changed since"}))
    assert suite("mine.yaml", "--from", str(base)) == 0
    said = (
        "warning: tone/pretrained: seed-2 read other data, or with another tokenizer, than seed-1"
    )
    assert said in capsys.readouterr().err

    before = status.read_text()
    begun = json.loads(before)
    begun["source"]["sha256"] = "0" * 64  # as if the base was trained further since
    status.write_text(json.dumps(begun))
    assert suite("mine.yaml", "--from", str(base)) == 2
    said = f"--from {base}: has other weights than those that 1 run in {out} began with (tone/pr"
    assert said in capsys.readouterr().err
    status.write_text(before)

    assert suite("mine.yaml", "--from", str(base), "--set", "train.lr=1e-5") == 2
    said = capsys.readouterr().err
    assert "was started with other settings" in said
    assert said.endswith("\ngive --out another directory\n")  # suite has no --allow-change


@pytest.mark.slow
def test_each_side_takes_the_best_of_its_own_rates_and_another_suite_its_runs_from_nothing(
    base, capsys
):
    searched = ("mine.yaml", "--set", "suite.rates=[1e-3, 4e-3]", "--seeds", "1")
    assert suite(*searched, "--from", str(base), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    out = Path(f"runs/mine-{base.name}")
    [row] = found["tasks"]
    for side, side_rates in row["rates"].items():
        chosen = side_rates["chosen"]
        assert {"0.001", "0.004"} <= {*side_rates["tried"]}
        searches = out / "tone" / side / "search"
        tried = {name: load(str(searches / f"lr-{name}/recipe.yaml")).recipe
                 for name in side_rates["tried"]}  # fmt: skip
        assert {name: each.train.lr for name, each in tried.items()} == {
            name: float(name) for name in tried
        }
        # Rows of the held-out file have no part in the choice.
        assert all(not each.data.valid for each in tried.values())
        assert {each.data.valid_fraction for each in tried.values()} == {0.1}
        scored = load(str(out / f"tone/{side}/lr-{chosen}/seed-1/recipe.yaml")).recipe
        assert (scored.train.lr, scored.data.valid_fraction) == (chosen, 0.0)
        assert scored.data.valid[0].files == ["valid.jsonl"]
    heads = (out / "suite.md").read_text().splitlines()[2]
    assert "| pretrained | rate | from nothing | rate |" in heads

    times = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    gone = out / "tone/pretrained/search/lr-0.004"
    shutil.rmtree(gone)
    assert suite(*searched, "--from", str(base), "--json") == 0
    assert json.loads(capsys.readouterr().out) == found
    changed = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [gone / "metrics.jsonl"]

    shutil.copytree(base, "other", symlinks=True)
    assert suite(*searched, "--from", "other", "--nothing", str(out), "--json") == 0
    [of_other] = json.loads(capsys.readouterr().out)["tasks"]
    assert of_other["from_nothing"] == row["from_nothing"]
    assert not Path("runs/mine-other/tone/from_nothing").exists()

    others = ("--from", "other", "--out", "runs/again", "--nothing", str(out))
    for asked, lacking in [
        (("mine.yaml", "--seeds", "1"), "seed-1"),  # no rates
        ((*searched, "--seeds", "2"), "lr-0.001/seed-2"),
    ]:
        assert suite(*asked, *others) == 2
        said = f"--nothing {out}: has no tone/from_nothing/{lacking}: other seeds or rates\n"
        assert capsys.readouterr().err == f"nlpkit: {said}"
    assert not Path("runs/again").exists()


def test_what_is_wrong_is_one_line_before_anything_starts(base, folder, capsys):
    def refused(code: int, *arguments: str) -> str:
        assert suite(*arguments) == code
        assert not Path("runs").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    start = ("--from", str(base))
    assert refused(2, "mine.yaml") == "nlpkit: mine.yaml: names no base; give --from RUN"
    no_text = "no text checkpoint (config.json and a tokenizer) to start from"
    (folder / "empty").mkdir()
    assert refused(4, "mine.yaml", "--from", "empty") == f"nlpkit: empty: {no_text}"
    missing = (
        "nlpkit: runs/gpt2: no such checkpoint to start from; `nlpkit pretrain gpt2` makes one"
    )
    assert refused(4, "mine.yaml", "--from", "runs/gpt2") == missing
    assert refused(2, "mine.yaml", *start, "--set", "train.stepz=1") == (
        "task tone: --set train.stepz: unknown setting, did you mean steps?"
    )
    said = "nlpkit: mine.yaml/out: cannot be written: a file is where a directory has to be"
    assert refused(4, "mine.yaml", *start, "--out", "mine.yaml/out") == said
    said = (
        r"nlpkit: \S*glue\.yaml:\d+:\d+: suite\.tasks\.0\.data\.train\.0: no such file: glue_data"
    )
    assert re.match(said, refused(4, "glue", *start))
    text = (folder / "mine.yaml").read_text()
    (folder / "mine.yaml").write_text(text.replace("gpt1_classify", "gpt2"))
    assert "objective." in refused(2, "mine.yaml", *start)
    (folder / "mine.yaml").write_text(text)
    (folder / "mine.yaml").write_text(f"{text}train: {{lr: 1e-3}}\n")
    said = "task tone: --set train.stepz: unknown setting"
    assert refused(2, "mine.yaml", *start, "--set", "train.stepz=1").startswith(said)
    for code, right, wrong, said in (
        (4, "gpt1_classify", "gpt1_clasify", "5:26: suite.tasks.0.recipe: gpt1_clasify: no such"),
        (2, "lm_weight", "lm_wieght", "6:24: objective.lm_wieght: unknown setting, did you mean"),
        (2, "max_length", "max_lenght", "5:65: suite.tasks.0.objective.max_lenght: unknown"),
    ):
        (folder / "mine.yaml").write_text(text.replace(right, wrong))
        assert f"mine.yaml:{said}" in refused(code, "mine.yaml", *start)
    (folder / "mine.yaml").write_text(f"{text}eval: {{metrics: [accuracyy]}}\n")
    said = f"mine.yaml:{text.count(chr(10)) + 1}:18: eval.metrics.0: no 'accuracyy', did you mean "
    assert refused(2, "mine.yaml", *start).startswith(said)
    (folder / "mine.yaml").write_text(f"{text}train: {{best_by: accuracyy}}\n")
    said = (
        f"mine.yaml:{text.count(chr(10)) + 1}:18: train.best_by: objective classification has no "
    )
    assert refused(2, "mine.yaml", *start).startswith(said)
    (folder / "mine.yaml").write_text(text.replace("[valid.jsonl]", "[gone.jsonl]"))
    said = "nlpkit: mine.yaml:7:38: data.valid.0: no such file: gone.jsonl"
    refusal = refused(4, "mine.yaml", *start)
    assert refusal.startswith(said)
    assert refusal.endswith("; --folder DIR names their folder")
    (folder / "mine.yaml").write_text(text.replace("lm_weight: 0", "text: words"))
    said = 'nlpkit: mine.yaml:7:15: data.train: train.jsonl:1: no "words"; it has: text, label'
    assert refused(3, "mine.yaml", *start) == f"{said} (objective.text: words)"
    (folder / "mine.yaml").write_text(text.replace("valid: [valid.jsonl]", "valid: []"))
    said = (
        "nlpkit: mine.yaml:7:37: data.valid: needed: the score of a task is that of held-out rows"
    )
    assert refused(2, "mine.yaml", *start) == said
    (folder / "mine.yaml").write_text(f"{text}train: {{lr: 1e-3}}\n")
    said = "nlpkit: mine.yaml:8:13: train.lr: excludes suite.rates"
    assert refused(2, "mine.yaml", *start, "--set", "suite.rates=[1e-3, 2e-3]") == said
    (folder / "mine.yaml").write_text(text)
    rates = ("mine.yaml", *start, "--set", "suite.rates=[1e-3, 2e-3]")
    said = "nlpkit: --set train.lr excludes suite.rates"
    assert refused(2, *rates, "--set", "train.lr=1") == said
    assert refused(2, "mine.yaml", *start, "--set", "suite.rates=[2e-3, 1e-3]") == (
        "--set suite.rates: expected two or more rates that rise, such as [5e-4, 1e-3, 2e-3]"
    )
    assert "did you mean rates?" in refused(2, "mine.yaml", *start, "--set", "suite.rate=[1]")
    said = "nlpkit: --nothing nowhere: no suite with runs from nothing"
    assert refused(2, "mine.yaml", *start, "--nothing", "nowhere") == said
    held_out = ("--set", "data.valid=[]", "--set", "data.valid_fraction=0.2")
    assert "data.valid: needed beside rates" in refused(2, *rates, *held_out)
    (folder / "mine.yaml").write_text("name: mine\nsuite: {tasks: [gpt2]}\n")
    assert refused(2, "mine.yaml", *start) == (
        "nlpkit: mine.yaml:2:17: suite.tasks.0.recipe: gpt2: objective clm is of no task"
    )
    (folder / "valid.jsonl").write_text('{"text": "x", "label": "other"}\n')
    (folder / "mine.yaml").write_text(text)
    assert "valid.jsonl:1:" in refused(3, "mine.yaml", *start)


NAMES = {
    "glue": {
        "cola": "CoLA/train.tsv", "sst2": "SST-2/train.tsv", "mrpc": "MRPC/train.tsv",
        "qqp": "QQP/train.tsv", "mnli": "MNLI/train.tsv", "rte": "RTE/train.tsv",
    },
    "clue": {
        "tnews": "tnews/train.json", "ocnli": "ocnli/train.50k.json", "csl": "csl/train.json",
        "cluewsc": "wsc/train.json",
    },
}  # fmt: skip
# Columns as published; the rows are ours.
OTHERS = {
    "glue": {"QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n"
             "0\tWho sang?\tBirds sang.\tentailment\n1\tWho?\tIt rained.\tnot_entailment\n"},
    "clue": {
        "afqmc/train.json": "".join(
            json.dumps({"sentence1": "花呗", "sentence2": "借呗", "label": label}) + "\n"
            for label in "01"
        ),
        "cmnli/train.json": _published.PUBLISHED["ocnli"].content,
        "iflytek/train.json": "".join(
            json.dumps({"label": str(n), "label_des": name, "sentence": "应用"}) + "\n"
            for n, name in enumerate(("打车", "地图"))
        ),
    },
}  # fmt: skip


def _write(*rows: dict) -> str:
    # Twice: counted words need two rows.
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows * 2)


_CLASSES = _write({"text": "a fine film", "label": 1}, {"text": "a dull film", "label": 0})
OTHERS["real_en"] = {
    "sst2.train.jsonl": _CLASSES,
    "cola.train.jsonl": _CLASSES,
    "scitail.train.jsonl": _write(
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entails"},
        {"premise": "It rains.", "hypothesis": "Birds sing.", "label": "neutral"},
    ),
    "sick.train.jsonl": _write({"text_a": "A man runs", "text_b": "A man walks", "score": 3.6}),
    "copa.train.jsonl": _write(
        {"premise": "It rained.", "question": "effect", "options": ["wet", "dry"], "label": 0}
    ),
}
OTHERS["real_zh"] = {
    "chnsenticorp.train.jsonl": _CLASSES,
    "ccpm.train.jsonl": _write({"input": "灯", "options": ["渔灯", "残灯"], "target": 1}),
    "c3.train.jsonl": _write({"input": "问题：", "options": ["是", "否"], "target": 0}),
    "kdconv.train.jsonl": _write({"input": "听过吗？", "target": "听过。"}),
    "ape210k.train.jsonl": _write({"input": "每班多少本？", "target": "x=135/3"}),
}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("glue", "14 runs"),
        ("clue", "14 runs"),
        # Three rates and one seed for each side.
        ("real_en", "40 runs"),
        ("real_zh", "40 runs"),
        ("shipped_zh", "4 runs"),
    ],
)
def test_files_of_a_suite_are_read_as_they_are(name, runs, base, capsys):
    files = {file: _published.PUBLISHED[task].content for task, file in NAMES.get(name, {}).items()}
    for file, content in (files | OTHERS.get(name, {})).items():
        place = Path("here", file)
        held_out = {"MNLI/train.tsv": "dev_matched.tsv"}.get(file, f"dev{place.suffix}")
        if ".train." in file:
            held_out = file.replace(".train.", ".dev.")
        for path in (place, place.with_name(held_out)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    asked = (name, "--from", str(base), "--folder", "here" if files or OTHERS.get(name) else "")
    assert cli.run(["suite", *asked, "--dry-run", "--seeds", "1"]) == 0
    assert f"{runs} in runs/{name}-{base.name}" in capsys.readouterr().err
