"""`--smoke-test`: the whole way of a recipe in seconds, and nothing of it is kept."""

import json
from pathlib import Path

import pytest

from nlpkit.commands import _smoke_test
from nlpkit.contracts.reader import TextFile
from nlpkit.data.files import Input
from tests import _images, _tiny, _tiny_tasks
from tests._faults import Server, done
from tests.models import test_recurrent_outside as test_parts_recurrent
from tests.models import test_translation_outside as test_parts_translation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_tasks.three(tmp_path_factory.mktemp("tasks"))


def test_no_row_is_read_that_the_run_does_not_read() -> None:
    files = tuple(TextFile(name, name, "jsonl", max_rows=2) for name in ("a", "b"))
    chosen = _smoke_test._choose_rows([Input(files, 1.0), Input(files[:1], 1.0)], 3)
    assert [source["max_rows"] for source in chosen] == [2, 2, 2]


@pytest.mark.slow
def test_smoke_test_of_text_leaves_the_run_as_it_is(server: Server, tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=5000)
    done(server.run("pretrain", path, "--out", tmp_path / "run", "--set", "train.steps=4"))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    ended = done(server.run("pretrain", path, "--out", tmp_path / "run", "--smoke-test",
                            "--set", "train.steps=100000", "--set", "data.valid=[]",
                            "--set", "data.valid_fraction=0.001", "--device", "cpu",
                            "--set", "train.tokens_per_batch=null",
                            "--set", "train.memory=900MB"))  # fmt: skip
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert ended.stdout.startswith("smoke test passed in ")
    said = "trained 2 steps, saved, opened, evaluated (loss "
    assert said in ended.stdout
    assert ended.stdout.endswith("), generated 8 tokens\n")
    assert "text: 64 documents" in ended.stderr
    assert "held out: 16 documents" in ended.stderr
    assert "train.txt: 64 documents" in ended.stderr
    assert "nlpkit-smoke-test-" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["nlg", *(pytest.param(n, marks=pytest.mark.slow) for n in ("nlu", "classes"))]
)
def test_smoke_test_of_a_task_evaluates_its_scores(server: Server, folder: Path, task: str) -> None:
    ended = done(server.run("finetune", folder / f"{task}.yaml", "--smoke-test", "--json"))
    values = json.loads(ended.stdout)
    assert values["passed"]
    assert ("exact_match" in values) == (task == "nlg")
    assert ("accuracy" in values) == (task != "nlg")
    assert ("generated_tokens" in values) == (task == "nlg")
    assert not (folder / "runs" / task).exists()


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("part", ["images", "translation", "recurrent"])
def test_smoke_test_of_every_kind_of_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    from nlpkit import cli

    if part == "images":
        path = _images.write(tmp_path)
    elif part == "translation":
        path = test_parts_translation._write(tmp_path)
    else:
        path = _tiny.write(tmp_path, text=test_parts_recurrent.RECIPE)
    assert cli.run(["pretrain", str(path), "--smoke-test", "--json", "--device", "cpu"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["passed"]
    assert values["loss"] > 0
    assert ("generated_tokens" in values) == (part != "images")


def test_smoke_test_finds_what_the_run_would_find(server: Server, folder: Path) -> None:
    text = (folder / "nlu.yaml").read_text("utf-8").replace("nlu.train", "wrong.train")
    (folder / "wrong.yaml").write_text(text, encoding="utf-8")
    rows = (folder / "nlu.train.jsonl").read_text("utf-8").splitlines()
    rows[7] = '{"input": 1}'
    (folder / "wrong.train.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ended = server.run("finetune", folder / "wrong.yaml", "--smoke-test")
    assert ended.code == 3
    where = folder / "wrong.train.jsonl"
    assert f'nlpkit: {where}:8: no "options"; it has: input' in ended.stderr.splitlines()
    both = server.run("finetune", folder / "nlu.yaml", "--smoke-test", "--dry-run")
    assert both.code == 2
    assert both.stderr.strip() == "nlpkit: --smoke-test and --dry-run exclude each other"
