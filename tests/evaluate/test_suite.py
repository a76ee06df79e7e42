"""Suites: their files, and the rows of the table."""

from pathlib import Path

import pytest

from nlpkit.errors import FileError, RecipeError
from nlpkit.evaluate import suite, suite_table


def load(text: str, folder: Path) -> suite.Suite:
    (folder / "mine.yaml").write_text(text)
    return suite.load(str(folder / "mine.yaml"))


def test_settings_of_a_task_stand_over_those_of_all(tmp_path):
    found = load(
        "name: mine\n"
        "suite: {folder: there, tasks: [gpt1_entail, {recipe: a/b.yaml, train: {lr: 2},"
        " data: {train: x.tsv, valid: [{files: y}]},"
        " objective: {name: classification, text: t}}]}\n"
        "objective: {lm_weight: 0}\ntrain: {lr: 1, epochs: 3}\n",
        tmp_path,
    )
    first, second = found.suite.tasks
    assert found.list_changes(first, "there", ["train.steps=5"]) == [
        'name="gpt1_entail"', "train.eval_every=null", "objective.lm_weight=0", "train.lr=1",
        "train.steps=5",
    ]  # fmt: skip
    # An objective of another name is no change of the recipe's, but another section.
    assert found.list_changes(second, "there", ()) == [
        'name="b"', "train.eval_every=null", 'data.train=["there/x.tsv"]',
        'data.valid=[{"files": "y"}]',
        'objective={"lm_weight": 0, "name": "classification", "text": "t"}', "train.lr=2",
        "train.epochs=3",
    ]  # fmt: skip


def test_mistakes_have_their_places(tmp_path):
    with pytest.raises(RecipeError) as caught:
        load("name: x\nsuite:\n  form: a\n  tasks: [{recipe: a, nme: b}]\n  seeds: 0\n", tmp_path)
    file = tmp_path / "mine.yaml"
    assert caught.value.problems == [
        f"{file}:3:3: suite.form: unknown setting, did you mean from?",
        f"{file}:4:23: suite.tasks.0.nme: unknown setting, did you mean name?",
        f"{file}:5:10: suite.seeds: must be greater than 0, got 0",
    ]
    with pytest.raises(RecipeError, match=r"mine.yaml:3:1: name: .*twice"):
        load("name: x\nsuite: {tasks: [a]}\nname: y\n", tmp_path)
    with pytest.raises(RecipeError, match="b is there twice; give each a name"):
        load("name: x\nsuite: {tasks: [a/b.yaml, b]}\n", tmp_path)
    with pytest.raises(FileError, match=r"^gleu: no such suite, did you mean glue\?$"):
        suite.load("gleu")


def test_commonest_answer_is_marked_and_too_few_seeds_are_named(tmp_path, monkeypatch):
    values = {"p1": 0.5, "p2": 0.7, "n1": 0.5, "n2": None}
    monkeypatch.setattr(suite_table, "_read_score", lambda run, score: values[run.name])
    monkeypatch.setattr(suite_table.RunDirectory, "finished", lambda run: run.path.name != "n3")
    empty = {"counted_words": None, "commonest_answer": None}
    known = {"task": "a", "score": "accuracy", "counted_words": 0.6, "commonest_answer": 0.5}

    def row(start: dict, *names: str) -> dict:
        first, *others = map(Path, names)
        return suite_table.add_scores(start, {"pretrained": [first], "from_nothing": others})

    rows = [
        row(known, "p2", "p1", "n3"),  # n3 is not finished
        row(known, "p1", "p1", "p2"),
        row({"task": "c", "score": "mcc", **empty}, "p1", "n1", "n2"),
    ]
    assert [each["difference"] for each in rows] == ["too few seeds", "too few seeds", None]
    text = suite_table.write(rows, "t", tmp_path / "t.md").splitlines()
    assert [line.split("  ") for line in (tmp_path / "t.md").read_text().splitlines()[4:7]] == [
        ["| a | accuracy | 0.700 | 0.500 * | too few seeds | 0.600 | 0.500 |"],
        ["| a | accuracy | 0.500 * | 0.600 ± 0.141 * | too few seeds | 0.600 | 0.500 |"],
        ["| c | mcc | 0.500 | – * | – | – | – |"],
    ]
    assert text[-1] == "*: a seed has the score of the commonest answer, or none that is defined"
