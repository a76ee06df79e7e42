"""Suites: their files, and the rows of the table."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers

from nlpkit.commands import _series, _suite
from nlpkit.commands._options import Common
from nlpkit.commands.suite import _describe_model
from nlpkit.errors import FileError, RecipeError
from nlpkit.evaluate import suite, suite_table
from nlpkit.evaluate.experiment import Sections
from nlpkit.recipe import load as load_recipe


def load(text: str, folder: Path) -> suite.Suite:
    (folder / "mine.yaml").write_text(text)
    return suite.load(str(folder / "mine.yaml"))[0]


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
        'data.valid=[{"files": "there/y"}]',
        'objective={"lm_weight": 0, "name": "classification", "text": "t"}', "train.lr=2",
        "train.epochs=3",
    ]  # fmt: skip


def test_folder_has_every_relative_name_of_the_data():
    names = ["a.txt", {"files": "b.txt"}, {"files": ["c.txt"], "weight": 2}, {"hf": "d"}]
    others = ["~/e.txt", {"files": "$HOME/f.txt"}, {"hf": "/g"}]
    found = suite.list_settings([suite.Sections(data={"train": names + others})], "there")
    assert found["data.train"] == [
        "there/a.txt", {"files": "there/b.txt"}, {"files": ["there/c.txt"], "weight": 2},
        {"hf": "there/d"}, *others,
    ]  # fmt: skip


def test_adapters_with_defaults_or_none_are_said():
    made = {name: Sections(lora=value) for name, value in (("ada", {}), ("none", None))}
    assert suite.list_settings([Sections(lora={"rank": 8}), made["none"]], "")["lora"] is None
    assert suite.list_settings([Sections(), made["ada"]], "")["lora"] == {}
    assert suite.list_settings([Sections(lora={"rank": 8}), Sections()], "")["lora"] == {"rank": 8}
    assert "lora" not in suite.list_settings([Sections()], "")


def test_model_of_a_size_is_told_by_its_sizes(tmp_path):
    model = "model={family: gpt2, size: 400k, max_positions: 64}"
    told = load_recipe("gpt2", [model, "tokenizer.vocab_size=500"]).dump()
    assert told["model"]["size"] == "400k"
    plain = suite.without_target(told)["model"]
    assert plain["hidden_size"] == told["model"]["hidden_size"]
    assert "size" not in plain
    assert suite.without_target(suite.without_target(told)) == suite.without_target(told)


def test_model_of_a_converted_base_has_its_attention(tmp_path):
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}
    kinds = [{"kind": "local_window", "window": 4}]
    settings = transformers.GPT2Config(**sizes).to_dict() | {"nlpkit": {"attention": kinds}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model, attention = _describe_model(tmp_path)
    loaded = load_recipe("gpt2", [model, attention]).recipe
    assert [each.config.window for each in loaded.attention.choices] == [4]
    assert loaded.model.config.hidden_size == 32


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
    monkeypatch.setattr(suite_table.history, "read", lambda run, _: _Final(values[run.name]))
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


@dataclass
class _Final:
    value: float | None

    @property
    def final(self) -> dict[str, float | None]:
        return {"accuracy": self.value, "mcc": self.value}


@dataclass
class _Run:
    """A run of a rate, which has diverged if its seed says so."""

    rate: float
    diverged: set[float]

    @property
    def path(self) -> float:
        return self.rate

    name = property(lambda self: str(self.rate))
    has_diverged = property(lambda self: self.rate in self.diverged)
    is_finished = property(lambda self: self.rate not in self.diverged)


def search(monkeypatch, rates, figures, train, diverged=()):
    """Return what a search finds where a run of a rate has these figures."""
    monkeypatch.setattr(
        _series.Series, "list_trials", lambda _, rates: [_Run(r, {*diverged}) for r in rates]
    )
    monkeypatch.setattr(_series.history, "read", lambda run, _: SimpleNamespace(final=figures(run)))
    made = _series.Series("a", "b", Path(), Common(), [], str, [1], rates, more=3)
    return made.search("accuracy", train)


@pytest.mark.parametrize(
    ("recipe", "changes", "group"),
    [
        ("gpt1_entail", [], "premise"),
        ("gpt1_entail", ["data.valid_group=null"], None),
        ("gpt1_entail", [" data.valid_group = null"], None),
        ("gpt1", [], None),  # documents
        ("vit", [], None),  # of an image, the class alone is named
        ("own.yaml", [], "hypothesis"),
    ],
)
def test_search_holds_out_rows_with_the_same_first_text_together(
    recipe, changes, group, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = "extends: gpt1_entail\ndata: {valid_group: hypothesis}\n"
    (tmp_path / "own.yaml").write_text(text)
    made = _series.Series("a", recipe, Path(), Common(), changes, str, [1])
    data = [run.resolved.recipe.data for run in made.list_trials([1e-3, 2e-3])]
    assert [each.valid_group for each in data] == [group] * 2
    assert made.list_trials([]) == []


@pytest.mark.parametrize(
    ("best", "tried", "chosen"),
    [
        (2e-3, [1e-3, 2e-3, 4e-3], 2e-3),  # not at an end
        (8e-3, [1e-3, 2e-3, 4e-3, 8e-3, 0.016], 8e-3),
        (1.0, [1e-3, 2e-3, 4e-3, 8e-3, 0.016, 0.032], 0.032),  # three more, and no more
        (2e-4, [1e-3, 2e-3, 4e-3, 5e-4, 2.5e-4, 1.25e-4], 2.5e-4),
    ],
)
def test_search_goes_on_at_the_end_where_the_best_rate_is(monkeypatch, best, tried, chosen):
    def accuracy(rate: float) -> float:
        return -abs(math.log(rate / best))

    found, failed = search(
        monkeypatch, [1e-3, 2e-3, 4e-3], lambda rate: {"accuracy": accuracy(rate)}, lambda _: {}
    )
    assert found == {"chosen": chosen, "tried": {f"{rate:g}": accuracy(rate) for rate in tried}}
    assert failed == {}


def test_a_rate_that_diverges_is_not_chosen_and_one_that_failed_otherwise_ends_the_search(
    monkeypatch,
):
    def find(train, diverged=()):
        figures = lambda rate: {"accuracy": rate}  # noqa: E731
        return search(monkeypatch, [1.0, 2.0, 4.0], figures, train, diverged)

    found, failed = find(lambda _: {"4.0": 5}, [4.0])
    assert found == {"chosen": 2.0, "tried": {"1": 1.0, "2": 2.0, "4": None}}
    assert failed == {}
    found, failed = find(lambda _: {"1.0": 7})
    assert (found["chosen"], failed) == (None, {"1.0": 7})
    asked = []
    found, failed = find(lambda runs: asked.extend(runs) or {}, [1.0, 2.0, 4.0])
    assert found == {"chosen": None, "tried": {"1": None, "2": None, "4": None}}
    assert asked == []  # they have diverged before, and are not tried again
    assert failed == {"1.0": 5, "2.0": 5, "4.0": 5}


def test_a_run_that_diverged_fails_again_without_being_trained(monkeypatch):
    monkeypatch.setattr(_suite.table, "add_scores", lambda row, of: row)
    lost, new = (SimpleNamespace(name=n, path=n, has_diverged=n == "lost") for n in ("lost", "new"))
    trained = []
    runner = SimpleNamespace(train=lambda runs: trained.extend(runs) or {})
    planned = _suite.Planned({}, {}, {"pretrained": [lost], "from_nothing": [new]})
    assert _suite.train([planned], runner)[1] == {"lost": 5}
    assert trained == [new]


def test_rates_stand_beside_scores_with_what_was_tried(tmp_path):
    figure = {"mean": 0.5, "std": None, "values": [0.5], "commonest": 0}
    rates = {
        "pretrained": {"chosen": 0.002, "tried": {"0.001": 0.4, "0.002": 0.5}},
        "from_nothing": {"chosen": 0.001, "tried": {"0.0005": 0.4, "0.001": 0.5, "0.002": None}},
    }
    row = {"task": "a", "score": "mcc", "difference": None, "rates": rates}
    row |= {"pretrained": figure, "from_nothing": figure}
    row |= {"counted_words": None, "commonest_answer": None}
    text = suite_table.write([row], "t", tmp_path / "t.md").splitlines()
    assert (tmp_path / "t.md").read_text().splitlines()[4] == (
        "| a | mcc | 0.500 | 0.002 of 2 (end) | 0.500 | 0.001 of 3 | – | – | – |"
    )
    assert [line.partition(":")[0] for line in text[-2:]] == ["of N", "(end)"]


def test_equal_scores_are_told_apart_by_the_loss_and_error_rates_are_better_if_lower():
    def rank(loss: float, value: float | None, score: str = "accuracy") -> tuple[float, float]:
        return _series.rank({"loss": loss, score: value}, score)

    assert rank(9.0, 0.6) > rank(0.6, 0.5) > rank(0.7, 0.5) > rank(0.1, None)
    assert rank(0.1, None) > rank(0.2, None)
    assert rank(9.0, 0.1, "wer") > rank(0.1, 0.2, "wer")
    assert _series.rank({"loss": 1.0}, "loss") > _series.rank({"loss": 2.0}, "loss")


def test_suite_shortens_the_training_rows_alone(tmp_path):
    found = load(
        "name: mine\nsuite: {tasks: [gpt1_entail], max_rows: 9}\n"
        "data: {train: [x.tsv, {files: y}], valid: z.tsv}\n",
        tmp_path,
    )
    assert found.list_changes(found.suite.tasks[0], "there", ())[2:] == [
        'data.train=[{"max_rows": 9, "files": "there/x.tsv"}, {"max_rows": 9, "files": "there/y"}]',
        'data.valid=["there/z.tsv"]',
    ]


def test_suite_that_cannot_shorten_the_rows_of_a_task_says_so(tmp_path):
    with pytest.raises(RecipeError, match="max_rows: gpt1_entail names no data"):
        load(
            "name: mine\nsuite:\n  max_rows: 9\n"
            "  tasks: [{recipe: gpt1_classify, data: {train: x.tsv}}, gpt1_entail]\n",
            tmp_path,
        )


def test_text_to_be_written_is_judged_by_the_loss():
    assert suite_table.start_row(load_recipe("gpt2_answers"), (), "gpt2_answers") == {
        "task": "gpt2_answers", "score": "loss", "counted_words": None, "commonest_answer": None
    }  # fmt: skip
