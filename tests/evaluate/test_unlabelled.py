"""Rows without labels: `nlpkit eval --predictions` answers them as those with labels."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nlpkit import cli
from tests import _tiny_tasks
from tests._family_runs import DATA, Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("unlabelled"))
    for part in ("train", "valid"):
        whole = json.loads((DATA / f"spans/en_answer.{part}.squad.json").read_text("utf-8"))
        whole["data"] = whole["data"][:8]
        (made.folder / f"qa.{part}.squad.json").write_text(json.dumps(whole), "utf-8")
    return made


def _without_column(text: str, column: int, separator: str) -> str:
    rows = [line.split(separator) for line in text.splitlines()]
    return "".join(separator.join(r[:column] + r[column + 1 :]) + "\n" for r in rows)


def _without_key(text: str, key: str = "label") -> str:
    rows = [json.loads(line) for line in text.splitlines()]
    return "".join(json.dumps({k: v for k, v in r.items() if k != key}) + "\n" for r in rows)


def _words(text: str) -> str:
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    rows = [{"words": [line.split(" ")[0] for line in block]} for block in blocks]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _questions(text: str) -> str:
    whole = json.loads(text)
    for article in whole["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"]
    return json.dumps(whole)


# Of each task: its objective, its files, and how the labels are taken out of one; what it is then.
TASKS: dict[str, tuple[str, str, Callable[[str], str], str]] = {
    "classes": (
        "{name: classification, max_length: 80}",
        "classify.{}.tsv", lambda text: _without_column(text, 0, "\t"), "rows.tsv",
    ),
    "tags": ("{name: tagging, max_length: 100, scheme: iob2}", "tag.{}.conll", _words, "r.jsonl"),
    "choice": (
        "{name: multiple_choice, max_length: 120}",
        "choice.{}.jsonl", _without_key, "r.jsonl",
    ),
    "near": (
        "{name: similarity, regression: true, max_length: 80}",
        "near.{}.jsonl", _without_key, "r.jsonl",
    ),
    "qa": (
        "{name: question_answering, max_length: 100, max_question_length: 30}",
        "qa.{}.squad.json", _questions, "r.squad.json",
    ),
}  # fmt: skip


def _predictions(run: Path, file: Path, data: Path) -> list[str]:
    assert cli.run(["eval", str(run), "--data", str(data), "--predictions", str(file), "-q"]) == 0
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [row["prediction"] for row in rows]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("task", TASKS)
def test_rows_without_labels_are_answered_as_those_with_labels(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    objective, files, strip, name = TASKS[task]
    run = runs.tuned("gpt2", task, files, objective)
    labelled, rows = runs.folder / files.format("valid"), tmp_path / name
    rows.write_text(strip(labelled.read_text("utf-8")), "utf-8")
    expected = _predictions(run, tmp_path / "expected.jsonl", labelled)
    capsys.readouterr()
    assert _predictions(run, tmp_path / "found.jsonl", rows) == expected
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["checkpoint", "rows", "precision"]
    assert '"target"' not in (tmp_path / "found.jsonl").read_text("utf-8")


@pytest.fixture(scope="module")
def chinese(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("chinese")
    start = _tiny_tasks.start(place)
    for name, text in (("nlu", _tiny_tasks.NLU), ("nlg", _tiny_tasks.NLG)):
        assert cli.run(["finetune", str(_tiny_tasks.task(place, name, text, start)), "-q"]) == 0
    return place


@pytest.mark.slow
def test_options_of_cpm_ant_are_chosen_without_the_right_one(chinese: Path, tmp_path: Path) -> None:
    labelled, rows = chinese / "nlu.valid.jsonl", tmp_path / "rows.jsonl"
    rows.write_text(_without_key(labelled.read_text("utf-8"), "target"), "utf-8")
    found = [
        _predictions(chinese / "runs/nlu", tmp_path / "p.jsonl", each) for each in (labelled, rows)
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_written_answers_without_right_ones_are_those_of_generate(
    chinese: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "天地"}\n', "utf-8")
    assert cli.run(["eval", str(chinese / "runs/nlg"), "--data", str(rows), "-q"]) == 3
    line = capsys.readouterr().err.splitlines()[-1]
    said = 'no "target"; it has: input; nlpkit generate answers rows that have no right answer'
    assert line.endswith(f"rows.jsonl:1: {said}")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            (),
            3,
            'no "label"; it has: text; to answer rows without labels: nlpkit eval {run} '
            "--data {rows} --predictions OUT.jsonl",
        ),
        (("--metrics", "f1"), 2, '--metrics: needs labels; {rows}:2: no "label"; it has: text'),
    ],
)
def test_scores_of_rows_without_labels_are_refused(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], options, code: int, said: str
) -> None:
    run = runs.tuned("gpt2", "classes", *(TASKS["classes"][n] for n in (1, 0)))
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\nThe soup was good.\n", "utf-8")
    (whole,) = (each for each in run.parents if (each / "recipe.yaml").is_file())
    # A folder of runs of --seeds, of which one can be asked for predictions.
    for asked in (run, seeds := tmp_path / "seeds"):
        if asked == seeds:
            seeds.mkdir()
            (run := seeds / "seed-1").symlink_to(whole)
        assert cli.run(["eval", str(asked), "--data", str(rows), "-q", *options]) == code
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.endswith(said.format(run=run, rows=rows))
