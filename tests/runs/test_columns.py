"""Rows as they come: templates, paths, labels with a map, nested JSON, published files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nlpkit import recipe, registry
from nlpkit.contracts.reader import Counts, LeftOut, RowError
from nlpkit.contracts.task import Task
from nlpkit.data import template
from nlpkit.data.documents import read_documents
from nlpkit.data.files import find_inputs
from nlpkit.data.items import Row, TaskDataset, build_items, read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.errors import DataError, RecipeError, UsageError
from nlpkit.runs import columns
from tests import _processes, _tiny
from tests._published import PUBLISHED, write
from tests.conftest import REAL_DATA

FAMILY = {"cpm_ant_nlu": "cpm_ant", "cpm_ant_nlg": "cpm_ant", "seq2seq": "t5", "generation": "gpt"}
KIND = {"cpm_ant": "cpm_ant", "gpt": "bpe", "t5": "unigram", "bert": "wordpiece"}
TEXTS = [published.content for published in PUBLISHED.values()] + ["是", "[是否正确]"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    """A tokenizer for each family, trained on all the rows."""
    found: dict[str, Any] = {}
    for family, kind in KIND.items():
        module = registry.load("tokenizers", kind)
        size = {"min_frequency": 1} if kind == "cpm_ant" else {}
        found[family] = module.Tokenizer.train(TEXTS, module.Config(vocab_size=600, **size))
    return found


def _task(settings: dict, tokenizers: dict[str, Any], rows: list[Row]) -> Any:
    """Return the objective bound to a model's settings, completed from the rows."""
    settings = dict(settings)
    name = settings.pop("name")
    module = registry.load("objectives", name)
    family = FAMILY.get(name, "bert")
    config = module.Objective.complete(module.Config(**settings), rows)
    model = registry.load("models", family).Config()
    tokenizer = tokenizers[family]
    wanted = module.Objective.special_tokens(config, model)
    lacking = [token for token in wanted if tokenizer.special_id(token) is None]
    return module.Objective(config, tokenizer.extended(lacking) if lacking else tokenizer, model)


def _rows(path: Path, named: tuple[str, ...] = (), **data: Any) -> list[Row]:
    config = DataConfig(train=[str(path)], **data)
    inputs, _ = find_inputs(config, None, path.parent)
    return list(read_rows(inputs, config, named, Counts()))


def _built(
    path: Path, settings: dict, tokenizers: dict[str, Any], **data: Any
) -> tuple[Any, TaskDataset]:
    module = registry.load("objectives", settings["name"])
    plain = {k: v for k, v in settings.items() if k != "name"}
    named = module.Objective.named_columns(module.Config(**plain))
    task = _task(settings, tokenizers, _rows(path, named, **data))
    config = DataConfig(train=[str(path)], **data)
    inputs, _ = find_inputs(config, None, path.parent)
    return task, build_items(inputs, config, task)


# Published files


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_become_the_texts_and_labels_that_they_have(
    name: str, tmp_path: Path, tokenizers: dict[str, Any]
) -> None:
    published = PUBLISHED[name]
    path = write(tmp_path, name)
    task, items = _built(path, published.objective, tokenizers, **published.data)
    assert len(items) == published.rows  # by hand
    rows = _rows(path, task.columns, **published.data)
    kept = []
    for row in rows:
        try:
            kept.append((task.texts(row), items.items[len(kept)].label))
        except LeftOut:
            continue
    texts, label = kept[0]
    assert texts == published.texts
    if hasattr(label, "answers"):
        assert label.answers == published.label
    elif isinstance(published.label, str) and not isinstance(label, str):
        assert task.config.labels[int(label)] == published.label
    else:
        assert label == published.label


def test_row_whose_label_means_null_is_left_out_and_counted(
    tmp_path: Path, tokenizers: dict[str, Any]
) -> None:
    path = write(tmp_path, "ocnli")
    task, items = _built(path, PUBLISHED["ocnli"].objective, tokenizers)
    assert items.counts.left_out == 1
    assert items.counts.bad == 0
    assert task.config.labels == ["蕴含", "中立", "矛盾"]


OCNLI = """\
name: ocnli
model: {family: cpm_ant, hidden_size: 32, num_layers: 1, num_heads: 4, intermediate_size: 48,
  prompt_types: 4, prompt_length: 4, segment_types: 4, num_buckets: 32, max_distance: 64}
tokenizer: {kind: cpm_ant, vocab_size: 200, min_frequency: 1}
data: {train: [FILE], valid: [FILE], text_key: "{sentence1}{sentence2}是否正确[]"}
objective: {name: cpm_ant_nlu, max_length: 64, input: "{sentence1}[SEP]{sentence2}",
  target: label, choices: {entailment: 蕴含, neutral: 中立, contradiction: 矛盾, "-": null}}
train: {steps: 2, tokens_per_step: 256, tokens_per_batch: 256, lr: 1.0e-2, schedule: constant,
  precision: fp32, eval_every: 1}
"""


@pytest.fixture
def ocnli(tmp_path: Path) -> Path:
    """The recipe of a tiny model that reads OCNLI's file as it is published."""
    file = write(tmp_path, "ocnli")
    path = tmp_path / "ocnli.yaml"
    path.write_text(OCNLI.replace("FILE", str(file)), encoding="utf-8")
    return path


def test_published_file_trains_and_is_evaluated_by_recipe_alone(
    ocnli: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    _tiny.pretrain(ocnli, out)
    result = _tiny.command("eval", str(out), "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["rows"] == 2  # the third has no label that annotators agree on
    assert set(figures["metrics"]) == {"accuracy"}
    plan = _tiny.command("plan", str(ocnli), "--no-probe", "--json")
    assert json.loads(plan.stdout)["data"]["train"]["left_out"] == 1


def test_recipes_of_the_page_are_in_order_and_read_the_published_columns() -> None:
    """Each objective in docs/data.md loads; of those shown with a file, the columns are there."""
    text = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(each) for each in re.findall(r"`(\{name: .+?\})`(?= |,|;|$)", text)]
    assert len(shown) > 20
    known = [published.objective for published in PUBLISHED.values()]
    same = 0
    for settings in shown:
        plain = {name: value for name, value in settings.items() if name != "name"}
        registry.load("objectives", settings["name"]).Config(**plain)
        same += settings in known
    assert same >= 15


def test_vocabulary_is_trained_on_nested_rows(tmp_path: Path) -> None:
    """Also the lines of a dialogue and the options, which are lists of texts."""
    path = write(tmp_path, "c3")
    (row, *_) = _rows(path, format="json", rows="1")
    assert Task.vocabulary_texts(None, row) == [
        *("女：你去哪儿？", "男：去学校。", "1-1", "男的去哪儿？", "家", "学校", "3", "学校"),
    ]
    row = Row({"a": "x", "b": [{"c": "y"}], "d": 1, "e": [1, "z"]}, "f", 1)
    assert Task.vocabulary_texts(None, row) == ["x", "y", "z"]
    words = registry.load("objectives", "tagging").Objective
    config = registry.load("objectives", "tagging").Config(words="s.words", tags="s.tags")
    row = Row({"s": {"words": ["a", "b"], "tags": ["O", "O"]}}, "f", 1)
    assert words.vocabulary_texts(config, row) == ["a b"]
    with pytest.raises(RowError, match="not a list of strings"):
        words.vocabulary_texts(config, Row({"s": {"words": 7}}, "f", 1))


def test_column_whose_name_has_a_colon_is_found_in_a_template() -> None:
    task = registry.load("objectives", "classification")
    config = task.Config(text="{a:b}")
    row = Row({"a:b": "x", "label": "y"}, "f", 1)
    task.Objective.check_columns(config, row)
    assert row.text("{a:b}") == "x"
    with pytest.raises(RowError, match='no "a"'):
        task.Objective.check_columns(config, Row({"c:b": "x", "label": "y"}, "f", 1))


# Mistakes


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("{sentence2}\",", "{sentence3}\","), 3,
         'train.50k.json:1: no "sentence3", did you mean sentence2?; it has: level, sentence1, '),
        (("target: label", "target: lable"), 3,
         'train.50k.json:1: no "lable", did you mean label?; it has: level'),
        (("[SEP]{sentence2}", "[SEP]{sentence2"), 2,
         "ocnli.yaml:6:55: objective.input: has a single brace, opened and not closed in"),
        (("{sentence1}[SEP]{sentence2}", "{}"), 2, "{} names no column; {COLUMN} is a value"),
        (("{entailment: 蕴含, ", "{"), 3,
         'train.50k.json:1: "label" is \'entailment\', which objective.choices does not have; it '
         "has: neutral, contradiction, - (a value of null leaves rows out)"),
        (("entailment: 蕴含", "entailmant: 蕴含"), 3,
         "which objective.choices does not have, did you mean entailmant?; it has: "),
        (("{entailment: 蕴含, neutral: 中立, contradiction: 矛盾, \"-\": null}", "[a, b]"), 3,
         '"label" is \'entailment\', not an integer from 0 to 1 nor a text of objective.choices: '
         "a, b"),
        (("{entailment: 蕴含, neutral: 中立, contradiction: 矛盾, \"-\": null}", "3"), 2,
         "objective.choices: needs a list of texts, or a mapping {VALUE: TEXT}"),
        (("{sentence1}{sentence2}是", "{sentence1}{sentence2是"), 2,
         "data.text_key: has a single brace"),
        (("data: {", "data: {rows: sentence1.x, "), 3,
         "train.50k.json:1: data.rows: sentence1.x: a string, not an object or an array"),
        (("data: {", "data: {history: 2, "), 2, "data.history: needs rows, the path"),
        (("target: label", "target: lable"), 3, "objective.target: lable)"),
    ],
)  # fmt: skip
def test_mistake_is_one_line_with_its_place(
    ocnli: Path, change: tuple[str, str], code: int, said: str
) -> None:
    text = ocnli.read_text(encoding="utf-8")
    assert change[0] in text
    ocnli.write_text(text.replace(*change), encoding="utf-8")
    ended = _processes.command("plan", str(ocnli), "--no-probe", "-q")
    assert ended.returncode == code, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert said in line


def test_unknown_column_is_named_before_torch_is_loaded(ocnli: Path) -> None:
    import subprocess
    import sys

    text = ocnli.read_text(encoding="utf-8").replace("target: label", "target: lable")
    ocnli.write_text(text, encoding="utf-8")
    code = (
        "import sys\nfrom nlpkit import recipe\nfrom nlpkit.runs import columns\n"
        f"try:\n    columns.check(recipe.load({str(ocnli)!r}))\n"
        "except Exception as error:\n    print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'no "lable", did you mean label?' in done.stdout
    assert done.stdout.endswith("False\n")


def test_columns_of_skipped_rows_may_be_missing_in_some(ocnli: Path, tmp_path: Path) -> None:
    file = tmp_path / PUBLISHED["ocnli"].file
    good = file.read_text(encoding="utf-8")
    file.write_text('{"sentence1": "x"}\n' + good, encoding="utf-8")
    with pytest.raises(DataError, match=r'train.50k.json:1: no "sentence2"'):
        columns.check(recipe.load(str(ocnli)))
    columns.check(recipe.load(str(ocnli), ["data.on_error=skip"]))
    with pytest.raises(DataError, match=r'no "lable"'):
        columns.check(recipe.load(str(ocnli), ["data.on_error=skip", "objective.target=lable"]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "classification", "choices": {"a": "b"}}, "names fewer than 2 choices"),
        ({"name": "classification", "choices": ["a", True]}, "entry 2 is true, not a text"),
        ({"name": "classification", "choices": {"a": "x", "b": ""}}, "entry 2 is empty"),
        ({"name": "classification", "choices": {None: "x", "b": "y"}}, "a key null, neither text"),
        ({"name": "classification", "choices": ["a", "b"], "labels": ["a", "c"]},
         "choices: 'b' is none of labels, a, c"),
        ({"name": "classification", "text": 3}, "needs a column, a template or a list of them"),
        ({"name": "classification", "text": ["a", "{b"]}, "has a single brace"),
        ({"name": "similarity", "choices": ["a", "b"], "regression": True}, "excludes regression"),
        ({"name": "multiple_choice", "label_as": "letter"}, "needs number, text, or a list"),
        ({"name": "cpm_ant_nlu", "choices": ["a", "b"], "target_as": "text"},
         "choices: excludes target_as"),
    ],
)  # fmt: skip
def test_settings_of_labels_that_contradict_are_refused(settings: dict, said: str) -> None:
    settings = dict(settings)
    config = registry.load("objectives", settings.pop("name")).Config
    with pytest.raises(ValidationError, match=said) as caught:
        config(**settings)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    ("settings", "label", "said"),
    [
        ({"label_as": "text"}, "c", "\"label\" is 'c', none of the options a, b"),
        ({"label_as": ["A", "B", "C"]}, "C", "\"label\" is 'C', none of the options A, B"),
        ({"label_as": "text"}, None, '"label" is null, not a string or a number'),
        ({}, "b", "not the number of an option, 0 to 1; objective.label_as: text reads the text"),
        ({}, "B", "not the number of an option, 0 to 1; objective.label_as: [A, B, C] reads names"),
        ({}, 2, '"label" is 2, not the number of an option, 0 to 1'),
    ],
)
def test_label_of_no_option_says_how_it_could_be_read(
    settings: dict, label: object, said: str
) -> None:
    module = registry.load("objectives", "multiple_choice")
    row = Row({"context": "x", "options": ["a", "b"], "label": label}, "f", 1)
    with pytest.raises(RowError) as caught:
        module.Objective.question(module.Config(**settings), row)
    assert said in caught.value.what


def test_text_of_two_options_names_none_of_them() -> None:
    module = registry.load("objectives", "multiple_choice")
    row = Row({"context": "x", "options": ["a", "a"], "label": "a"}, "f", 1)
    with pytest.raises(RowError, match="the text of several options"):
        module.Objective.question(module.Config(label_as="text"), row)


# Templates and paths

VALUES = {
    "a": "x",
    "n": 2.0,
    "b.c": "dotted",
    "d": {"e": "deep", "f": [{"g": "1"}, {"g": "2"}]},
    "l": ["p", "q"],
    "t:u": "colon",
    "none": None,
    "nan": float("nan"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a}-{n}", "x-2"),
        ("{{{a}}}", "{x}"),
        ("{b.c}", "dotted"),
        ("{d.e}", "deep"),
        ("{d.f.1.g}", "2"),
        ("{d.f.-1.g}", "2"),
        ("{d.f.g:+}", "1+2"),
        ("{l:, }", "p, q"),
        ("{l:}", "pq"),
        ("{t:u}", "colon"),
    ],
)
def test_template_is_filled(text: str, expected: str) -> None:
    assert template.problem(text) is None
    assert template.fill(text, VALUES) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{aa}", 'no "aa", did you mean a?'),
        ("{d.x}", '"d": no "x"; it has: e, f'),
        ("{a.x}", '"a": a string, which has no "x"'),
        ("{d.f.7.g}", '"d.f": no entry 7; it has 2 entries'),
        ("{d.f.h:,}", '"d.f.0": no "h"; it has: g'),
        ("{l}", '"l" is an array, neither text nor a number; {l:, } joins its texts with ", "'),
        ("{none}", '"none" is null, neither text nor a number'),
        ("{nan}", '"nan" is NaN, neither text nor a number'),  # what pandas writes of no value
        ("{d}", '"d" is an object, neither text nor a number'),
        ("{d.f:,}", '"d.f.0" is an object, neither text nor a number'),
    ],
)
def test_template_that_does_not_fit_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(RowError) as caught:
        template.fill(text, VALUES)
    assert said in caught.value.what


def test_columns_of_templates_are_named_once_without_separators() -> None:
    assert template.columns("{a.b:, } {c}{a.b:;}", "d") == ("a.b", "c", "d")
    assert template.apart("{a}[SEP]{b} {c}") == ["{a}", "{b} {c}"]
    assert template.apart("a[SEP]b") == ["a[SEP]b"]  # the name of a column


def test_numbered_columns_may_stand_in_templates(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\ttwo\n")
    (row,) = _rows(tmp_path / "a.tsv", template.columns("{1}+{2}"))
    assert row.text("{2}+{1}") == "two+one"


# Nested rows


def test_rows_by_a_path_equal_those_of_the_reader_of_squad(tmp_path: Path) -> None:
    path = write(tmp_path, "squad")
    ours = _rows(path, format="json", rows="data.paragraphs.qas")
    theirs = _rows(path, format="squad")
    named = ("id", "title", "context", "question", "answers")
    assert [[row.values[name] for name in named] for row in ours] == [
        [row.values[name] for name in named] for row in theirs
    ]
    assert [row.line for row in ours] == [row.line for row in theirs]


@pytest.mark.real_data
def test_rows_by_a_path_equal_those_of_the_reader_on_cmrc() -> None:
    path = REAL_DATA / "zh_task/cmrc2018_trial.squad.json"
    ours = _rows(path, format="json", rows="data.paragraphs.qas")
    theirs = _rows(path)
    assert len(ours) == len(theirs) == 1002  # questions, counted with grep -c '"question"'
    for one, other in zip(ours, theirs, strict=True):
        assert one.line == other.line
        for name in ("context", "question", "answers"):
            assert one.values[name] == other.values[name]


def test_rows_know_the_lines_of_their_objects(tmp_path: Path) -> None:
    path = write(tmp_path, "c3")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = _rows(path, format="json", rows="1")
    begins = [n for n, line in enumerate(lines, 1) if line.strip() == "{"]
    assert [row.line for row in rows] == begins


def test_history_is_the_turns_before_and_no_more_than_asked(tmp_path: Path) -> None:
    turns = [{"message": str(number)} for number in range(5)]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": turns, "name": "n"}) + "\n" + '{"messages": []}\n')
    rows = _rows(path, rows="messages", history=2)
    assert [row.text("{name}|{before.message:,}|{message}") for row in rows] == [
        "n|0|1",
        "n|0,1|2",
        "n|1,2|3",
        "n|2,3|4",
    ]
    assert len(_rows(path, rows="messages")) == 5


@pytest.mark.parametrize(
    ("content", "path", "said"),
    [
        ('{"a": [1]}', "b", 'data.rows: b: no "b"; it has: a'),
        ('{"a": [1], "b": [1, 2]}', "a+b", '"a" has 1 entry, "b" has 2 entries; one of each'),
        ('{"a": 1, "b": [1]}', "a+b", '"a" is a number (1), not an array'),
        ('{"a": [1]}', "a.b", "data.rows: a.b: a number (1), not an object or an array"),
        ("3", "a", "a number (3), not an object or an array"),
    ],
)
def test_path_that_does_not_fit_is_one_line(
    tmp_path: Path, content: str, path: str, said: str
) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError) as caught:
        _rows(tmp_path / "a.json", format="json", rows=path)
    assert str(caught.value).startswith(f"{tmp_path}/a.json:1: ")
    assert said in str(caught.value)


def test_wrong_entry_is_skipped_alone_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    parts = [{"qs": ["a"]}, 7, {"q": ["x"]}, {"qs": ["b"]}]
    path.write_text(json.dumps({"parts": parts}) + "\n")
    config = DataConfig(train=[str(path)], rows="parts.qs", on_error="skip")
    inputs, _ = find_inputs(config, None, tmp_path)
    counts = Counts()
    rows = list(read_rows(inputs, config, (), counts))
    assert [row.values["qs"] for row in rows] == ["a", "b"]
    assert [bad.what for bad in counts.first_bad] == [
        "data.rows: parts.qs: a number (7), not an object or an array",
        'data.rows: parts.qs: no "qs", did you mean q?; it has: q',
    ]


def test_json_that_is_jsonl_says_so_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "x"}\n{"text": "y"}\n')
    with pytest.raises(DataError, match=r"a.json:2: broken JSON .* are data.format: jsonl"):
        _rows(tmp_path / "a.json", format="json")
    for text in ('[\n{"text": "x"}]\n', '[{"text": "x"},\n{"text": "y"}]\n', '[{"text": "x"}]\n'):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(DataError, match=r"b.json:1: .*; in a recipe, data.format: json reads"):
            _rows(tmp_path / "b.json")


def test_json_with_a_key_twice_or_a_number_too_long_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[\n{"text": "x", "n": 1},\n{"text": "x", "text": "y"}]')
    with pytest.raises(DataError, match=r'a.json:3: "text" is there twice'):
        _rows(tmp_path / "a.json", format="json")
    (tmp_path / "b.json").write_text('[{"text": ' + "9" * 5000 + "}]")
    with pytest.raises(DataError, match=r"b.json: broken JSON: a number with too many digits"):
        _rows(tmp_path / "b.json", format="json")


def test_data_rows_are_refused_for_running_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    config = DataConfig(train=[str(tmp_path / "a.jsonl")], rows="a")
    inputs, _ = find_inputs(config, None, tmp_path)
    with pytest.raises(UsageError, match=r"^data.rows: says where the rows of a task are"):
        list(read_documents(inputs, config, Counts()))


def test_tags_that_are_numbers_are_places_in_the_labels() -> None:
    module = registry.load("objectives", "tagging")
    row = Row({"words": ["Ann", "sang"], "tags": [1, 0]}, "f", 1)
    with pytest.raises(DataError, match=r'"tags": tag 1 is a number \(1\), not a string; obj'):
        module.Objective.complete(module.Config(), [row])
    from nlpkit.objectives.tagging import _tags

    config = module.Config(labels=["O", "B-PER"])
    assert _tags(row, config) == ["B-PER", "O"]
    with pytest.raises(RowError, match=r'"tags": tag 2 is 2; objective.labels has 2 tags, 0 to 1'):
        _tags(Row({"words": ["a", "b"], "tags": [1, 2]}, "f", 1), config)


def test_old_settings_have_the_columns_that_old_fingerprints_have(tokenizers: dict) -> None:
    """The columns are part of what a resumed run compares."""
    expected = {
        "classification": ("text", "label"),
        "entailment": ("premise", "hypothesis", "label"),
        "similarity": ("text_a", "text_b", "label"),
        "multiple_choice": ("context", "options", "label"),
        "question_answering": ("context", "question", "answers"),
        "tagging": ("words", "tags"),
        "cpm_ant_nlu": ("input", "options", "target"),
        "cpm_ant_nlg": ("input", "target"),
        "cpm_ant_segments": ("input", "target"),
        "generation": ("source", "target"),
        "seq2seq": ("source", "target"),
    }
    for name, names in expected.items():
        module = registry.load("objectives", name)
        assert issubclass(module.Objective, Task)
        assert module.Objective.named_columns(module.Config()) == names


def test_mistakes_in_a_recipe_are_reported_together(ocnli: Path) -> None:
    text = ocnli.read_text(encoding="utf-8")
    text = text.replace("{sentence1}[SEP]", "{sentence1[SEP]").replace("蕴含", '""')
    ocnli.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(ocnli))
    assert len(caught.value.problems) == 2


ROWS = "has no effect on the rows of a task, unless they train a tokenizer of all texts"


@pytest.mark.parametrize(
    ("sets", "warnings"),
    [
        (["data.train=[t.txt]", "data.text_key=body"],
         ["data.text_key: has no effect on files of the format text: t.txt"]),
        (["data.train=[b.jsonl, t.txt]", "data.text_key=body"], []),
        (["data.train=[{files: t.txt, text_key: x}, {files: b.jsonl, text_key: body}]"],
         ["data.train.0.text_key: has no effect on files of the format text: t.txt"]),
        (["data.train=[{files: [t.txt, b.jsonl], text_key: body}]"], []),
        (["data.train=[{files: b.jsonl, text_key: body}]", "data.text_key=x"],
         ["data.text_key: has no effect where every source has its own text_key"]),
        (["data.train=[{files: b.jsonl, text_key: body}, t.txt]", "data.text_key=x"],
         ["data.text_key: has no effect on files of the format text: t.txt"]),
        (["data.train=[c.csv]", "data.text_key=q", "objective={name: classification, text: q}"],
         []),
        (["data.train=[c.csv]", "data.text_key=q", "objective={name: classification, text: q}",
          "tokenizer={path: t}"],
         [f"data.text_key: {ROWS}"]),
        (["data.train=[c.csv]", "data.valid=[{files: c.csv, text_key: q}]",
          "objective={name: classification, text: q}"], [f"data.valid.0.text_key: {ROWS}"]),
        (["data.train=[{files: c.csv, text_key: q}, c.jsonl]",
          "objective={name: classification, text: q}"], []),
        (["data.train=[{files: c.csv, text_key: q}, c.jsonl]", "model={family: seq2seq}",
          "tokenizer={source: {kind: bpe}, target: {kind: bpe}}",
          "objective={name: seq2seq, source: q, target: label}"],
         [f"data.train.0.text_key: {ROWS}"]),
    ],
)  # fmt: skip
def test_text_key_that_no_file_is_asked_for_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: list[str], warnings: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("a line\n")
    Path("b.jsonl").write_text('{"body": "a text"}\n')
    Path("c.csv").write_text("label,q\nno,who\n")
    Path("c.jsonl").write_text('{"label": "no", "q": "who"}\n')
    found = columns.check(recipe.load("gpt2", ["data.valid=[]", *sets]))
    said = [re.sub("^--set (data.(train|valid): )?", "", each) for each in found]
    assert said == warnings


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "empty file"), ("\n \n", "no documents: 2 blank lines, 0 empty texts")],
)
def test_file_without_text_is_found_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text(content)
    sets = ["data.train=[t.txt]", "data.valid=[]"]
    with pytest.raises(DataError, match=rf"^t.txt: {what}$"):
        columns.check(recipe.load("gpt2", sets))
    assert columns.check(recipe.load("gpt2", [*sets, "data.on_error=skip"])) == []
